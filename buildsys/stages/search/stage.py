"""The search stage: the smallest list of nodes in fp32 for a converted graph within its limits.

Engines with ``precision: auto`` are built with the list; ``buildsys debug --fp32-nodes`` prints
one. The search ends after a number of trials, for the list to be the same on slow machines. Only
``buildsys debug --fp32-nodes`` stops after a time.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from buildsys.errors import StageError
from buildsys.manifest.default_limits import effective_limits
from buildsys.onnx_graphs.inspection.describe import macs_per_node
from buildsys.onnx_graphs.inspection.graph import plain_model
from buildsys.onnx_graphs.opset_changes import raise_opset
from buildsys.onnx_graphs.quantizers import refuse_quantized
from buildsys.onnx_graphs.tensor_types import DTYPES, emulate
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.common.golden_check import (
    Checks,
    failures_of,
    figures_of,
    golden_limits,
    judge_agreement,
    load_golden,
    wrong_outputs,
)
from buildsys.stages.common.graph_runs import GraphCheck
from buildsys.stages.common.intermediate_tensors import IntermediateTensors, largest_losses
from buildsys.stages.common.node_patterns import load_named_model, named_nodes
from buildsys.stages.convert.quantized import insert, quantized_nodes
from buildsys.stages.convert.typed import BF16_IR_VERSION, BF16_OPSET, LARGEST, convert_precision
from buildsys.stages.search.result import KeptNodes
from buildsys.workers.job import Job, StageResult

Passes = Callable[[Sequence[str]], bool]
MayGoOn = Callable[[], bool]


def run(job: Job) -> StageResult:
    """Search within the trials of the manifest, or within ``limit_s`` seconds.

    Raises: StageError: the graph cannot be converted, or a graph cannot run.
    """
    golden = load_golden(job)
    bounds = job.options.get("search")
    ends = time.monotonic() + job.options.get("limit_s", 0)
    of_metric = "buildsys.stages.search.by_metric"  # which only their targets have in the key
    kind = import_module(of_metric).MetricTrials if job.options.get("limit") else Trials
    if bounds and kind is Trials:
        job = replace(job, options={**job.options, "tolerance": _narrowed(job, golden)})
    trials: Trials = kind(job, golden, bounds["trials"] if bounds else 0)

    def may_go_on() -> bool:
        return bool(trials.count < bounds["trials"] if bounds else time.monotonic() < ends)

    without = trials.check_all(())
    exclusion = Exclusion((), is_smallest=True)
    if not without["passed"]:
        certain = trials.certain()
        order = list(dict.fromkeys((*certain, *trials.ranked(certain))))
        exclusion = find_exclusion(order, len(certain), trials.passes, may_go_on)
    names = exclusion.nodes
    if names and trials.converted(names) is None:
        names = None
    in_fp32 = trials.nodes(trials.candidates if names is None else names)
    figures: dict[str, Any] = {
        "precision": job.options["precision"],
        "without": without,
        "with": trials.check_all([node.name for node in in_fp32]) if in_fp32 else without,
        "nodes": [[node.name, node.op_type] for node in in_fp32],
        "is_fp32": names is None,
        "is_smallest": exclusion.is_smallest,
        "trials": trials.count,
        "exclude": trials.exclude,
        "candidates": len(trials.candidates),
    }
    if bounds:
        kept_in_fp32 = (*in_fp32, *trials.nodes(trials.by_rule))
        results = {node.name: list(node.output) for node in kept_in_fp32}
        content = KeptNodes([node.name for node in in_fp32], names is None, results)
        text = json.dumps(asdict(content), indent=1)
        job.outputs["nodes"].write_text(text + "\n", encoding="utf-8")
        share = _low_share(job, trials, {node.name for node in in_fp32})
        figures |= {"macs_low": share, **trials.limit_figures}
    return StageResult(figures=figures)


def _narrowed(job: Job, golden: Mapping[str, Case]) -> dict[str, float | None]:
    """Narrow the limits by the margin of engines, whose kernels round elsewhere."""
    float_type = next((case.float_type for case in golden.values()), "float32")
    limits = effective_limits(job.options["tolerance"], job.options["precision"], float_type)
    share = 1.0 - job.options["search"]["margin"]
    errors = ("rtol", "atol", "spread_error", "slope", "channel_error")  # the others end at 1
    return {
        name: None if limit is None else (end := name not in errors) + share * (limit - end)
        for name, limit in limits.items()
    }


def _low_share(job: Job, trials: "Trials", in_fp32: set[str]) -> float | None:
    """Compute the share of the multiply-accumulates in the precision, at one of the cases."""
    cases = job.options["cases"]
    dims = cases["opt"] if "opt" in cases else next(iter(cases.values()), {})
    body = plain_model(trials.original, dims).body
    macs = {node.name: count or 0 for node, count in macs_per_node(body)}
    low = sum(macs.get(name, 0) for name in {*trials.candidates} - in_fp32)
    return low / sum(macs.values()) if any(macs.values()) else None


@dataclass(frozen=True)
class Exclusion:
    """Nodes that make the check pass; None without any."""

    nodes: tuple[str, ...] | None
    is_smallest: bool = False  # without any one of them the check fails


def find_exclusion(
    order: Sequence[str], certain: int, passes: Passes, may_go_on: MayGoOn
) -> Exclusion:
    """Find nodes whose exclusion passes, none of which can be left out.

    Nodes of ``order`` are excluded, the most suspicious first: the ``certain`` first ones, then
    twice as many until it passes. Then halves, quarters and at last single nodes are tried without,
    the least suspicious first. The result depends on the order only, unless it has to end early.
    """
    count = max(certain, 1)
    while not passes(order[:count]):
        if count >= len(order) or not may_go_on():
            return Exclusion(None)
        count *= 2
    nodes = list(order[:count])
    size = max(len(nodes) // 2, 1)
    while may_go_on():
        before = len(nodes)
        for end in range(len(nodes), 0, -size):
            rest = nodes[: max(end - size, 0)] + nodes[end:]
            if rest and may_go_on() and passes(rest):
                nodes = rest
        if size == 1 and (len(nodes) == before or len(nodes) == 1):
            return Exclusion(tuple(nodes), may_go_on())
        size = max(size // 2, 1)
    return Exclusion(tuple(nodes))


class Trials:
    """Conversions of one graph, each with other nodes in fp32.

    ``candidates`` are the converted nodes in graph order, without those that the manifest excludes.
    ``by_rule`` are the nodes that no conversion changes, for the numbers in them: builders of the
    float32 graph must keep them in fp32, because the graph that was checked does.
    """

    def __init__(self, job: Job, golden: dict[str, Case], most: int = 0) -> None:
        """Load the graph; ``most`` trials, if it is not 0, are for the progress only."""
        self._job, self._golden, self._most = job, golden, most
        self._precision = job.options["precision"]
        self._is_quantized = "quantize" in job.options
        options = job.options["quantize"] if self._is_quantized else job.options
        self.exclude = list(options.get("exclude", ()))  # the patterns of the manifest
        self.original = load_named_model(job.inputs["model"])
        refuse_quantized(self.original, self._precision)
        if self._precision == "bf16":
            self.original, _ = raise_opset(self.original, BF16_OPSET, BF16_IR_VERSION)
        self.operators = {node.name: node.op_type for node in self.original.graph.node}
        self.limit_figures: dict[str, Any] = {"limits": dict(job.options["tolerance"])}
        self.count = 0
        self._verdicts: dict[frozenset[str], bool] = {}
        self._order = list(golden)  # the case that failed last comes first
        self.by_rule: Sequence[str] = ()
        if self._is_quantized:
            self.candidates = quantized_nodes(self.converted(()) or self.original)
            return
        conversion = convert_precision(self._copy(), self._precision, self.exclude)
        self.candidates = [name for name in self.operators if name in conversion.low_nodes]
        self.by_rule = [name for name in self.operators if name in conversion.reasons]

    def converted(self, nodes: Sequence[str]) -> ModelProto | None:
        """Convert the graph with ``nodes`` in fp32, as ONNX Runtime runs it.

        Returns None if they leave nothing expensive to convert.
        """
        model, exclude = self._copy(), [*self.exclude, *nodes]
        try:
            if self._is_quantized:
                model, _ = insert(self._job, model, exclude)
                named_nodes(model)
                return model
            convert_precision(model, self._precision, exclude)
        except StageError:
            if not nodes:
                raise
            return None
        return emulate(model, self._precision)

    def certain(self) -> list[str]:
        """List the nodes that read or write values beyond a 16-bit range in some case."""
        if self._is_quantized:
            return []
        limit = LARGEST[DTYPES[self._precision]]
        tensors = IntermediateTensors(self._job, self._copy())
        beyond = {
            name
            for case in self._golden.values()
            for values in tensors.groups(dict(case.inputs))
            for name, array in values(dict(case.inputs)).items()
            if np.abs(array).max(initial=0.0) > limit
        }
        return [
            node.name
            for node in self.nodes(self.candidates)
            if beyond.intersection((*node.input, *node.output))
        ]

    def nodes(self, names: Collection[str]) -> list[NodeProto]:
        """List the nodes of these names in graph order."""
        chosen = set(names)
        return [node for node in self.original.graph.node if node.name in chosen]

    def ranked(self, certain: Sequence[str]) -> list[str]:
        """List the candidates by added error, the largest first, with ``certain`` in fp32."""
        self._job.progress("comparing intermediate tensors")
        case = self._golden[self._order[0]]
        converted = self.converted(certain)
        if converted is None:
            return list(self.candidates)
        losses = largest_losses(self._job, self._copy(), converted, self.candidates, case)
        return list(dict.fromkeys([*(loss.result.node for loss in losses), *self.candidates]))

    def passes(self, nodes: Sequence[str]) -> bool:
        """Check that the graph with ``nodes`` in fp32 is within the limits."""
        key = frozenset(nodes)
        if key not in self._verdicts:
            self.count += 1
            self._job.progress(f"trial {self.count}: {len(nodes)} nodes in fp32")
            self._job.count(self.count, self._most, "trials")
            self._verdicts[key] = self.holds(nodes)
        return self._verdicts[key]

    def holds(self, nodes: Sequence[str]) -> bool:
        """Compare the outputs with ``nodes`` in fp32 in every case."""
        return not failures_of(self._precision, self._check(nodes, is_trial=True))

    def check_all(self, nodes: Sequence[str]) -> dict[str, Any]:
        """Judge all cases with ``nodes`` in fp32, with the worst error."""
        checks = self._check(nodes)
        failed = failures_of(self._precision, checks)
        figures = [output for case in figures_of(checks).values() for output in case.values()]
        errors = [output.get("relative") for output in figures]
        numbers = [error for error in errors if error is not None]
        return {
            "passed": not failed,
            "relative": max(numbers, default=0.0) if len(numbers) == len(errors) else None,
            "reason": failed[0].sentence() if failed else "",
        }

    def _check(self, nodes: Sequence[str], *, is_trial: bool = False) -> Checks:
        """Compare the outputs; a trial ends with the first failed case."""
        graph = GraphCheck(self._job, self.converted(nodes) or self._copy())
        checks: Checks = {}
        for case in self._order:
            checks = {**checks, **graph.compare({case: self._golden[case]})}
            if is_trial and wrong_outputs(checks[case]):
                break
        else:
            checks, _ = judge_agreement(checks, golden_limits(self._job, self._golden))
        self._order.sort(key=lambda case: case not in checks or not wrong_outputs(checks[case]))
        return checks

    def _copy(self) -> ModelProto:
        copy = ModelProto()
        copy.CopyFrom(self.original)
        return copy
