"""torch's custom_domain::clamp_swish as one node custom_domain::customOp2."""

from __future__ import annotations

from typing import Any

from onnx.defs import OpSchema
from onnxscript.values import Op, Opset

_FLOATS = ("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "any float")
_SCHEMA = OpSchema(
    "customOp2",
    "custom_domain",
    1,
    inputs=[OpSchema.FormalParameter("x", "T")],
    outputs=[OpSchema.FormalParameter("y", "T")],
    type_constraints=[_FLOATS],
)


def clamp_swish(x: Any) -> Any:
    """Return the node; ``register_fake`` gives its output shape."""
    return Op(Opset("custom_domain", 1), "customOp2", _SCHEMA)(x)
