"""Trials: conversions of one graph, each with other nodes in fp32.

Each converts the graph as ``convert`` does and compares it with the golden outputs on the CPU,
16-bit graphs with their rounding emulated. Nodes are tried in the order of the error that they add
to intermediate tensors, which are computed in groups of limited memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.emulation import emulate
from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.onnx_graphs.tensor_types import DTYPES
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.calibrate.ranges import IntermediateTensors
from buildsys.stages.common.golden_check import OutputCheck, check_outputs, judge_agreement
from buildsys.stages.common.node_patterns import matching_pattern, named_nodes, node_name
from buildsys.stages.convert.cast_graph import (
    BF16_IR_VERSION,
    BF16_OPSET,
    convert_precision,
    raise_opset,
)
from buildsys.stages.convert.precision_rules import LARGEST
from buildsys.stages.convert.quantized import insert, largest_losses, quantized_nodes
from buildsys.stages.operators.open_graph import open_graph
from buildsys.workers.job import Job


class Trials(ABC):
    """Conversions of one graph, each with other nodes in fp32."""

    # the converted nodes in graph order, without those that the manifest excludes
    candidates: Sequence[str]
    # the nodes that no conversion changes, for the numbers in them: builders of the float32 graph
    # must keep them in fp32, because the graph that was checked does
    by_rule: Sequence[str] = ()

    def __init__(
        self, job: Job, golden: dict[str, Case], exclude: Sequence[str], most: int = 0
    ) -> None:
        """Load the graph; ``most`` trials, if it is not 0, are for the progress only."""
        self._job, self._golden, self._most = job, golden, most
        self.exclude = list(exclude)  # the patterns of the manifest
        self.original = load_model(job.inputs["model"])
        named_nodes(self.original)
        self.operators = {node.name: node.op_type for node in self.original.graph.node}
        self.count = 0
        self._verdicts: dict[frozenset[str], bool] = {}
        self._order = list(golden)  # the case that failed last comes first

    @abstractmethod
    def converted(self, nodes: Sequence[str]) -> ModelProto:
        """Convert the graph with ``nodes`` in fp32, as ONNX Runtime runs it."""

    def certain(self) -> list[str]:
        """List the nodes excluded in any case."""
        return []

    def nodes(self, names: Collection[str]) -> list[NodeProto]:
        """List the nodes of these names in graph order."""
        chosen = set(names)
        return [node for node in self.original.graph.node if node.name in chosen]

    def ranked(self) -> list[str]:
        """List the candidates by added error, the largest first."""
        self._job.progress("comparing intermediate tensors")
        case = self._golden[self._order[0]]
        try:
            converted = self.converted(self.certain())
        except StageError:  # without the certain nodes nothing expensive is left
            return list(self.candidates)
        losses = largest_losses(self._job, self._copy(), converted, self.candidates, case)
        return list(dict.fromkeys([*(loss.node for loss in losses), *self.candidates]))

    def passes(self, nodes: Sequence[str]) -> bool:
        """Check that the graph with ``nodes`` in fp32 is within the limits in every case."""
        key = frozenset(nodes)
        if key not in self._verdicts:
            self.count += 1
            self._job.progress(f"trial {self.count}: {len(nodes)} nodes in fp32")
            self._job.count(self.count, self._most, "trials")
            self._verdicts[key] = self._passes(nodes)
        return self._verdicts[key]

    def _passes(self, nodes: Sequence[str]) -> bool:
        try:
            graph = open_graph(self._job, self.converted(nodes))
        except StageError:  # nothing expensive is left to convert
            return False
        checks: list[OutputCheck] = []
        for case in list(self._order):
            of_case = self._compare(graph, [case])
            if not all(check.comparison.passed for check in of_case):
                self._put_first(case)
                return False
            checks += of_case
        judged, _ = judge_agreement(self._job, checks, self._golden)
        return all(check.comparison.passed for check in judged)

    def check_all(self, nodes: Sequence[str] | None) -> dict[str, Any]:
        """Return the verdict with the worst error of all cases; None: on the graph in fp32."""
        model = self._copy() if nodes is None else self.converted(nodes)
        checks = self._compare(open_graph(self._job, model), list(self._golden))
        checks, _ = judge_agreement(self._job, checks, self._golden)
        failed = [check for check in checks if not check.comparison.passed]
        for check in reversed(failed):  # the smallest failed case first: its tensors are compared
            self._put_first(check.case)
        errors = [check.comparison.figures().get("relative") for check in checks]
        numbers = [error for error in errors if error is not None]
        return {
            "passed": not failed,
            "relative": max(numbers, default=0.0) if len(numbers) == len(errors) else None,
            "reason": failed[0].sentence() if failed else "",
        }

    def _put_first(self, case: str) -> None:
        self._order.remove(case)
        self._order.insert(0, case)

    def _compare(self, graph: Any, cases: Sequence[str]) -> list[OutputCheck]:
        golden = {case: self._golden[case] for case in cases}
        return check_outputs(self._job, self._job.options["precision"], graph, golden)

    def _copy(self) -> ModelProto:
        copy = ModelProto()
        copy.CopyFrom(self.original)
        return copy


class TypedTrials(Trials):
    """Conversions to fp16 or bf16."""

    def __init__(self, job: Job, golden: dict[str, Case], most: int = 0) -> None:
        super().__init__(job, golden, job.options.get("exclude", ()), most)
        self._precision = job.options["precision"]
        if self._precision == "bf16":
            self.original, _ = raise_opset(self.original, BF16_OPSET, BF16_IR_VERSION)
        self._beyond: list[str] | None = None
        model = self._copy()
        in_fp32 = convert_precision(model, self._precision, self.exclude).kept
        computed = {node.name for node in model.graph.node}  # without those of constants
        low = {
            node.name
            for node in self.original.graph.node
            if node.name in computed
            and node.name not in in_fp32
            and not matching_pattern(node_name(node), self.exclude)
        }
        self.candidates = [name for name in self.operators if name in low]
        self.by_rule = [name for name in self.operators if name in computed - low]

    def converted(self, nodes: Sequence[str]) -> ModelProto:
        """Convert the graph, with the rounding of the precision."""
        model = self._copy()
        convert_precision(model, self._precision, [*self.exclude, *nodes])
        return emulate(model, self._precision)

    def certain(self) -> list[str]:
        """List the nodes that read or write values beyond the range in some case."""
        if self._beyond is None:
            large, candidates = self._tensors_beyond_range(), set(self.candidates)
            self._beyond = [
                node.name
                for node in self.original.graph.node
                if node.name in candidates and large.intersection((*node.input, *node.output))
            ]
        return self._beyond

    def _tensors_beyond_range(self) -> set[str]:
        limit = LARGEST[DTYPES[self._precision]]
        tensors = IntermediateTensors.of_job(self._job, self._copy())
        return {
            name
            for case in self._golden.values()
            for values in tensors.groups(dict(case.inputs))
            for name, array in values(dict(case.inputs)).items()
            if np.abs(array).max(initial=0.0) > limit
        }


class QuantizedTrials(Trials):
    """Insertions of quantizers for int8 or fp8."""

    def __init__(self, job: Job, golden: dict[str, Case], most: int = 0) -> None:
        super().__init__(job, golden, job.options["quantize"]["exclude"], most)
        self.candidates = quantized_nodes(self.converted(()))

    def converted(self, nodes: Sequence[str]) -> ModelProto:
        """Insert quantizers."""
        model, _ = insert(self._job, self._copy(), [*self.exclude, *nodes])
        named_nodes(model)
        return model
