"""Differences explained by the last bits of the numbers.

Two right implementations differ as well, for example in the order of nearly equal scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
from buildsys.workers.job import Job

UNSTABLE = "its outputs depend on the last bits of the numbers"
_DRAWS = 6
_EXPLAINED = 16.0  # the last bits of one draw hit other elements than rounding


def is_unstable(
    job: Job,
    graph: OrtGraph,
    noise: RoundingNoise,
    case: Case,
    failed: Sequence[OutputCheck],
    rules: OutputRules | None = None,
) -> bool:
    """Check if the last bits move every failed output beyond its limits.

    The change must be comparable to the difference: a wrong branch is no matter of rounding.
    """
    unexplained = {check.output: check.comparison.relative for check in failed}
    limits, (policies, assembled) = golden_limits(job, {"": case}), rules or output_rules(job)
    try:
        own = graph.run(case.inputs)
        for draw in range(_DRAWS):
            moved = noise.nudged_outputs(case.inputs, draw)
            changes = compare_outputs(
                moved, own, limits, policies, inputs=case.inputs, assembled=assembled
            )
            for output, change in changes.items():
                relative = unexplained.get(output, np.inf)
                if not change.passed and _EXPLAINED * change.relative >= relative:
                    unexplained.pop(output, None)
    except StageError:  # the graph refuses the changed numbers
        return False
    return not unexplained
