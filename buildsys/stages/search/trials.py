"""Trials: conversions of one graph, each with other nodes in fp32.

Each converts the graph as ``convert`` does and compares it with the golden outputs on the CPU,
16-bit graphs with their rounding emulated. Nodes are tried in the order of the error that they add
to intermediate tensors, which are computed in groups of limited memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.emulation import emulate
from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.onnx_graphs.tensor_types import DTYPES
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.common.golden_check import OutputCheck, check_outputs, judge_agreement
from buildsys.stages.common.node_patterns import matching_pattern, named_nodes, node_name
from buildsys.stages.convert.cast_graph import (
    BF16_IR_VERSION,
    BF16_OPSET,
    convert_precision,
    raise_opset,
)
from buildsys.stages.convert.precision_rules import LARGEST
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.operators.open_graph import open_graph
from buildsys.stages.quantize.convert import largest_losses, quantized_graph, quantized_nodes
from buildsys.stages.quantize.ranges import IntermediateTensors
from buildsys.workers.job import Job


class Trials(ABC):
    """Conversions of one graph, each with other nodes in fp32."""

    def __init__(self, job: Job, golden: dict[str, Case], most: int = 0) -> None:
        self._job, self._golden = job, golden
        self._most = most  # trials, 0 if unknown
        self.original = load_model(job.inputs["model"])
        named_nodes(self.original)
        self.operators = {node.name: node.op_type for node in self.original.graph.node}
        self.count = 0
        self.exclude: list[str] = []  # the patterns of the manifest
        self._known: dict[frozenset[str], bool] = {}
        self._order = list(golden)  # the case that failed last comes first

    @abstractmethod
    def converted(self, nodes: Sequence[str]) -> ModelProto:
        """Return the converted graph, as ONNX Runtime runs it, with ``nodes`` in fp32."""

    def certain(self) -> list[str]:
        """Return the nodes excluded in any case."""
        return []

    @abstractmethod
    def candidates(self) -> Collection[str]:
        """Return the converted nodes."""

    def by_rule(self) -> Collection[str]:
        """Return the nodes that no conversion changes, for the numbers in them.

        Builders of the float32 graph must keep them as well: what was checked is a graph with them.
        """
        return ()

    def nodes(self, names: Collection[str]) -> list[NodeProto]:
        """Return the nodes of these names in graph order."""
        wanted = set(names)
        return [node for node in self.original.graph.node if node.name in wanted]

    def ranked(self) -> list[str]:
        """Return the candidates by added error, the largest first."""
        self._job.progress("comparing intermediate tensors")
        case = self._golden[self._order[0]]
        try:
            converted = self.converted(self.certain())
        except StageError:  # without the certain nodes nothing expensive is left
            return list(self.candidates())
        graphs = []
        implementation = implementation_of(self._job)
        with TemporaryDirectory(dir=self._job.outputs["result"].parent) as scratch:
            for model in (_copied(self.original), converted):
                implementation.apply(model)
                libraries = implementation.libraries
                tensors = IntermediateTensors(model, Path(scratch), self._job.threads, libraries)
                graphs.append(tensors)
            losses = largest_losses(graphs[0], graphs[1], self.candidates(), dict(case.inputs))
        order = [loss.node for loss in losses]
        return order + [name for name in self.candidates() if name not in order]

    def passes(self, nodes: Sequence[str]) -> bool:
        """Return True if the graph with ``nodes`` in fp32 is within the limits in every case."""
        key = frozenset(nodes)
        if key not in self._known:
            self.count += 1
            self._job.progress(f"trial {self.count}: {len(nodes)} nodes in fp32")
            self._job.count(self.count, self._most, "trials")
            self._known[key] = self._passes(nodes)
        return self._known[key]

    def _passes(self, nodes: Sequence[str]) -> bool:
        try:
            graph = open_graph(self._job, self.converted(nodes))
        except StageError:  # nothing expensive is left to convert
            return False
        every: list[OutputCheck] = []
        for case in list(self._order):
            checks = self._compared(graph, [case])
            if not all(check.comparison.passed for check in checks):
                self._order.remove(case)
                self._order.insert(0, case)
                return False
            every += checks
        judged, _ = judge_agreement(self._job, every, self._golden)
        return all(check.comparison.passed for check in judged)

    def check_all(self, nodes: Sequence[str]) -> dict[str, Any]:
        """Return the verdict with the worst error of all cases."""
        return self._summary(self.converted(nodes))

    def check_original(self) -> dict[str, Any]:
        """Return the verdict on the graph in fp32."""
        return self._summary(_copied(self.original))

    def _summary(self, model: ModelProto) -> dict[str, Any]:
        checks = self._compared(open_graph(self._job, model), list(self._golden))
        checks, _ = judge_agreement(self._job, checks, self._golden)
        failed = [check for check in checks if not check.comparison.passed]
        for check in reversed(failed):  # the smallest failed case first: its tensors are compared
            self._order.remove(check.case)
            self._order.insert(0, check.case)
        errors = [check.comparison.figures().get("relative") for check in checks]
        known = [error for error in errors if error is not None]
        return {
            "passed": not failed,
            "relative": max(known, default=0.0) if len(known) == len(errors) else None,
            "reason": failed[0].sentence() if failed else "",
        }

    def _compared(self, graph: Any, cases: Sequence[str]) -> list[OutputCheck]:
        golden = {case: self._golden[case] for case in cases}
        return check_outputs(self._job, self._job.options["precision"], graph, golden)


class TypedTrials(Trials):
    """Conversions to fp16 or bf16."""

    def __init__(self, job: Job, golden: dict[str, Case], most: int = 0) -> None:
        super().__init__(job, golden, most)
        precision = job.options["precision"]
        if precision == "bf16":
            self.original, _ = raise_opset(self.original, BF16_OPSET, BF16_IR_VERSION)
        self.exclude = list(job.options.get("exclude", ()))
        self._beyond: list[str] | None = None
        model = _copied(self.original)
        found = convert_precision(model, precision, self.exclude)
        nodes = {node.name for node in model.graph.node}  # without those of constants
        self._computed = nodes
        self._kept = {
            node.name
            for node in self.original.graph.node
            if node.name in found.kept
            or node.name not in nodes
            or matching_pattern(node_name(node), self.exclude)
        }

    def converted(self, nodes: Sequence[str]) -> ModelProto:
        """Return the graph with the rounding of the precision."""
        model, precision = _copied(self.original), self._job.options["precision"]
        convert_precision(model, precision, [*self.exclude, *nodes])
        return emulate(model, precision)

    def by_rule(self) -> Collection[str]:
        """Return the nodes that stay in fp32 for their values or by the manifest."""
        return [name for name in self.operators if name in self._kept and name in self._computed]

    def candidates(self) -> Collection[str]:
        """Return the nodes in 16 bits."""
        return [name for name in self.operators if name not in self._kept]

    def certain(self) -> list[str]:
        """Return the nodes that read or write values beyond the range in some case."""
        if self._beyond is None:
            self._beyond = self._out_of_range()
        return self._beyond

    def _out_of_range(self) -> list[str]:
        limit = LARGEST[DTYPES[self._job.options["precision"]]]
        large: set[str] = set()
        model = _copied(self.original)
        implementation = implementation_of(self._job)
        implementation.apply(model)
        with TemporaryDirectory(dir=self._job.outputs["result"].parent) as scratch:
            tensors = IntermediateTensors(
                model, Path(scratch), self._job.threads, implementation.libraries
            )
            for case in self._golden.values():
                for values in tensors.groups(dict(case.inputs)):
                    for name, array in values(dict(case.inputs)).items():
                        if np.abs(array).max(initial=0.0) > limit:
                            large.add(name)
        known = set(self.candidates())
        return [
            node.name
            for node in self.original.graph.node
            if node.name in known and large.intersection((*node.input, *node.output))
        ]


class QuantizedTrials(Trials):
    """Insertions of quantizers for int8 or fp8."""

    def __init__(self, job: Job, golden: dict[str, Case], most: int = 0) -> None:
        super().__init__(job, golden, most)
        self.exclude = list(job.options["quantize"]["exclude"])
        self._quantized = quantized_nodes(self.converted(()))

    def converted(self, nodes: Sequence[str]) -> ModelProto:
        """Return the graph with quantizers."""
        with TemporaryDirectory(dir=self._job.outputs["result"].parent) as scratch:
            model = quantized_graph(
                self._job, _copied(self.original), Path(scratch), [*self.exclude, *nodes]
            )
        named_nodes(model)
        return model

    def candidates(self) -> Collection[str]:
        """Return the nodes with quantized inputs."""
        return self._quantized


def _copied(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy
