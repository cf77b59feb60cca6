"""Errors of a converted graph's nodes, by their intermediate tensors."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto

from buildsys.onnx_graphs.tensors import Array, Case
from buildsys.stages.quantize.ranges import IntermediateTensors
from buildsys.workers.job import Job


@dataclass(frozen=True)
class Loss:
    """Error of one node's result, and of its inputs.

    Errors are the norm of the difference over the norm of the float32 tensor.
    """

    node: str
    operator: str
    error: float
    before: float

    @property
    def added(self) -> float:
        """The error added by this node; infinite where an overflow begins."""
        return self.error - self.before if math.isfinite(self.before) else 0.0

    def figures(self) -> dict[str, Any]:
        """Return the entry of a result file."""
        errors = {"error": self.error, "error_before": self.before}
        return {"node": self.node, "operator": self.operator, **errors}


def largest_losses(
    job: Job, exact: ModelProto, converted: ModelProto, nodes: Collection[str], case: Case
) -> list[Loss]:
    """Compare both graphs' tensors in one case; list the losses of ``nodes``, largest first.

    Tensors without a counterpart in the other graph are left out. Both graphs may change.
    """
    tensors, others = (IntermediateTensors.of_job(job, model) for model in (exact, converted))
    errors: dict[str, float] = {}
    for name, expected, actual in tensors.compared(others, dict(case.inputs)):
        if actual.shape == expected.shape:
            errors[name] = _relative_error(expected, actual)
    losses = [
        Loss(
            node.name,
            node.op_type,
            errors[node.output[0]],
            max((errors.get(name, 0.0) for name in node.input), default=0.0),
        )
        for node in tensors.nodes
        if node.name in nodes and node.output[0] in errors
    ]
    return sorted(losses, key=lambda loss: -loss.added)


def _relative_error(expected: Array, actual: Array) -> float:
    if not np.isfinite(actual).all():
        return math.inf if np.isfinite(expected).all() else 0.0
    scale = float(np.abs(expected).max(initial=0.0))
    if scale == 0.0:
        return math.inf if actual.any() else 0.0
    a, b = actual.astype(np.float64) / scale, expected.astype(np.float64) / scale
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
