"""Stability of a graph in ONNX Runtime against the last bits of its weights and inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.onnx_graphs.output_policies import compare_outputs
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.common.golden_check import (
    OutputCheck,
    OutputRules,
    golden_limits,
    output_rules,
)
from buildsys.stages.common.rounding_noise import RoundingNoise
from buildsys.stages.common.stability import DRAWS, Difference, are_explained
from buildsys.workers.job import Job


def is_unstable(
    job: Job,
    graph: OrtGraph,
    noise: RoundingNoise,
    case: Case,
    failed: Sequence[OutputCheck],
    rules: OutputRules | None = None,
) -> bool:
    """Check if the last bits of weights and inputs explain every failed output of a case."""
    limits, (policies, assembled) = golden_limits(job, {"": case}), rules or output_rules(job)
    failures = {
        check.output: Difference(check.actual, check.expected, check.comparison)
        for check in failed
        if check.actual is not None and check.expected is not None
    }
    if len(failures) < len(failed):  # an output is missing
        return False

    def draws() -> Iterator[dict[str, Difference]]:
        own = graph.run(case.inputs)
        for draw in range(DRAWS):
            moved = noise.nudged_outputs(case.inputs, draw)
            changes = compare_outputs(
                moved, own, limits, policies, inputs=case.inputs, assembled=assembled
            )
            yield {name: Difference(moved[name], own[name], changes[name]) for name in changes}

    try:
        return are_explained(failures, draws(), limits["rtol"])
    except StageError:  # the graph refuses the changed numbers
        return False
