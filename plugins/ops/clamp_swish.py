"""custom_domain::customOp2 as an ONNX local function, for all backends."""

from __future__ import annotations

from onnxscript import opset17 as op
from onnxscript import script
from onnxscript.values import Opset


@script(Opset("custom_domain", 1), default_opset=op)
def customOp2(x):  # noqa: N802 (the operator's name)
    """Return ``z / (1 + exp(-z))`` with ``z = max(x, 0)``."""
    z = op.Relu(x)
    return z * op.Sigmoid(z)
