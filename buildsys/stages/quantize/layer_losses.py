"""Quantization error per layer: quantized against float32 tensors on one input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from buildsys.onnx_graphs.tensors import Array
from buildsys.stages.quantize.batches import Batch
from buildsys.stages.quantize.intermediate_tensors import IntermediateTensors


@dataclass(frozen=True)
class Loss:
    """Error of one quantized node's result, and of its inputs.

    Errors are the norm of the difference over the norm of the float32 tensor.
    """

    node: str
    operator: str
    error: float
    before: float

    @property
    def added(self) -> float:
        """The error added by this node."""
        return self.error - self.before

    def figures(self) -> dict[str, Any]:
        """Return the entry of a result file."""
        errors = {"error": self.error, "error_before": self.before}
        return {"node": self.node, "operator": self.operator, **errors}


def largest_losses(
    exact: IntermediateTensors,
    quantized: IntermediateTensors,
    quantized_nodes: list[str],
    batch: Batch,
) -> list[Loss]:
    """Return the losses of quantized nodes, largest first.

    Tensors without a counterpart in the other graph are left out.
    """
    known = dict(exact.all_of(batch))
    errors = {
        name: _relative(values, known[name])
        for name, values in quantized.all_of(batch)
        if name in known and values.shape == known[name].shape
    }
    losses = []
    for node in exact.nodes:
        if node.name in quantized_nodes and node.output[0] in errors:
            before = max((errors.get(name, 0.0) for name in node.input), default=0.0)
            losses.append(Loss(node.name, node.op_type, errors[node.output[0]], before))
    return sorted(losses, key=lambda loss: -loss.added)


def _relative(actual: Array, expected: Array) -> float:
    scale = float(np.abs(expected).max(initial=0.0))
    if scale == 0.0:
        return 0.0 if not actual.any() else float("inf")
    a, b = actual.astype(np.float64) / scale, expected.astype(np.float64) / scale
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
