"""The search stage: the smallest list of nodes in fp32 for a converted graph within its limits.

Engines with ``precision: auto`` are built with the list; ``doit localize`` prints one. The search
ends after a number of trials, for the list to be the same on slow machines. Only ``doit localize``
stops after a time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnx import ModelProto, NodeProto

from buildsys.manifest.default_limits import effective_limits
from buildsys.onnx_graphs.inspection.load import drop_weights, plain_model, with_sizes
from buildsys.onnx_graphs.inspection.macs import macs_per_node
from buildsys.onnx_graphs.tensors import Case, load_case
from buildsys.stages.search.trials import QuantizedTrials, Trials, TypedTrials
from buildsys.workers.job import Job, StageResult

Passes = Callable[[Sequence[str]], bool]
MayGoOn = Callable[[], bool]


def run(job: Job) -> StageResult:
    """Search within the trials of the manifest, or within ``limit_s`` seconds.

    Raises: StageError: the graph cannot be converted, or a graph cannot run.
    """
    golden = {case: load_case(job.inputs[f"case.{case}"]) for case in job.options["cases"]}
    bounds = job.options.get("search")
    ends = time.monotonic() + job.options.get("limit_s", 0)
    if bounds:
        job = replace(job, options={**job.options, "tolerance": _narrowed(job, golden)})
    kind = QuantizedTrials if "quantize" in job.options else TypedTrials
    trials: Trials = kind(job, golden, bounds["trials"] if bounds else 0)
    without = trials.check_all(())
    exclusion = Exclusion((), is_smallest=True)
    if not without["passed"]:

        def may_go_on() -> bool:
            is_within = trials.count < bounds["trials"] if bounds else time.monotonic() < ends
            return bool(is_within)

        exclusion = find_exclusion(trials.certain(), trials.ranked, trials.passes, may_go_on)
    names, operators = exclusion.nodes, trials.operators
    figures: dict[str, Any] = {
        "precision": job.options["precision"],
        "without": without,
        "with": None if names is None else trials.check_all(names) if names else without,
        "nodes": None if names is None else [[name, operators[name]] for name in names],
        "is_smallest": exclusion.is_smallest,
        "trials": trials.count,
        "exclude": trials.exclude,
    }
    if bounds:
        figures |= _written(job, trials, names)
    return StageResult(figures=figures)


def _narrowed(job: Job, golden: Mapping[str, Case]) -> dict[str, float | None]:
    """Narrow the limits by the margin of engines, whose kernels round elsewhere."""
    float_type = next((case.float_type for case in golden.values()), "float32")
    limits = effective_limits(job.options["tolerance"], job.options["precision"], float_type)
    share = 1.0 - job.options["search"]["margin"]
    errors = ("rtol", "atol", "spread_error", "slope", "channel_error")  # the others end at 1
    return {
        name: limit
        if limit is None
        else limit * share
        if name in errors
        else 1.0 - (1.0 - limit) * share
        for name, limit in limits.items()
    }


def _written(job: Job, trials: Trials, names: Sequence[str] | None) -> dict[str, Any]:
    """Write the list for later stages; return further figures.

    Without a list that passes, all nodes stay in fp32: the engine is right, and the report says
    that nothing was gained.
    """
    candidates = list(trials.candidates)
    is_fp32 = names is None or set(candidates) <= set(names)
    kept = candidates if is_fp32 else list(names or ())
    nodes = trials.nodes(kept)
    content = {
        "precision": job.options["precision"],
        "all": is_fp32,
        "nodes": _entries(nodes),
        "by_rule": _entries(trials.nodes(trials.by_rule)),
    }
    job.outputs["nodes"].write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    macs = _macs(trials.original, job.options["cases"])
    total = sum(macs.values())
    low = sum(macs.get(name, 0) for name in candidates)
    still = low - sum(macs.get(name, 0) for name in kept)
    return {
        "is_fp32": is_fp32,
        "with": trials.check_all(None) if is_fp32 else trials.check_all(kept),
        "nodes": [[node.name, node.op_type] for node in nodes],
        "candidates": len(candidates),
        "macs_low": still / total if total else None,
        "macs_low_without": low / total if total else None,
        "limits": dict(job.options["tolerance"]),
    }


def _entries(nodes: Sequence[NodeProto]) -> list[dict[str, Any]]:
    return [
        {"name": node.name, "operator": node.op_type, "outputs": list(node.output)}
        for node in nodes
    ]


def _macs(model: ModelProto, cases: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Count the multiply-accumulates of each node at one of the cases."""
    light = ModelProto()
    light.CopyFrom(model)
    drop_weights(light)
    dims = cases["opt"] if "opt" in cases else next(iter(cases.values()), {})
    body = plain_model(with_sizes(light, dims)).body
    names = [node.name for node, _ in body.walk()]
    return {name: macs or 0 for name, macs in zip(names, macs_per_node(body), strict=True)}


@dataclass(frozen=True)
class Exclusion:
    """Nodes that make the check pass; None without any."""

    nodes: tuple[str, ...] | None
    is_smallest: bool = False  # without any one of them the check fails


def find_exclusion(
    certain: Sequence[str], ranked: Callable[[], Sequence[str]], passes: Passes, may_go_on: MayGoOn
) -> Exclusion:
    """Return nodes whose exclusion passes, none of which can be left out.

    ``certain`` are excluded first. If that does not pass, nodes of ``ranked`` follow, the most
    suspicious first: 1, 2, 4, … until it passes, then by bisection the fewest of them. At last
    halves, quarters and single nodes are tried without, the least suspicious first. The result
    depends on the order only, unless it has to end early.
    """
    nodes = list(certain)
    if not nodes or not passes(nodes):
        order = [node for node in ranked() if node not in certain]
        low, high = 0, 1
        while high < len(order) and not passes([*certain, *order[:high]]):
            if not may_go_on():
                return Exclusion(None)
            low, high = high, min(2 * high, len(order))
        while high - low > 1 and may_go_on():
            middle = (low + high) // 2
            if passes([*certain, *order[:middle]]):
                high = middle
            else:
                low = middle
        nodes = [*certain, *order[:high]]
        if high >= len(order) and not passes(nodes):  # with all of them nothing is converted
            return Exclusion(None)
    return _reduced(nodes, passes, may_go_on)


def _reduced(nodes: list[str], passes: Passes, may_go_on: MayGoOn) -> Exclusion:
    size = max(len(nodes) // 2, 1)
    while may_go_on():
        before = len(nodes)
        for start in range(len(nodes) - size, -size, -size):
            rest = nodes[: max(start, 0)] + nodes[max(start, 0) + size + min(start, 0) :]
            if rest and may_go_on() and passes(rest):
                nodes = rest
        if size == 1 and (len(nodes) == before or len(nodes) == 1):
            return Exclusion(tuple(nodes), may_go_on())
        size = size if size == 1 else size // 2
    return Exclusion(tuple(nodes))
