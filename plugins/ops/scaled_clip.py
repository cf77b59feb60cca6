"""``mydomain::ScaledClip`` for ONNX Runtime, as a function of standard operators."""

from __future__ import annotations

from collections.abc import Sequence

from onnxscript import BOOL, FLOAT, script
from onnxscript import opset17 as op
from onnxscript.values import Opset


@script(Opset("mydomain", 1), default_opset=op)
def ScaledClip(  # noqa: N802 (the operator's name)
    x: FLOAT[...], scale: float, bounds: Sequence[float]
) -> tuple[FLOAT[...], BOOL[...]]:
    """Return the clipped values and a mask of unclipped ones."""
    scaled = x * op.CastLike(op.Constant(value_float=scale), x)
    limits = op.CastLike(op.Constant(value_floats=bounds), x)
    low = op.Gather(limits, op.Constant(value_int=0))
    high = op.Gather(limits, op.Constant(value_int=1))
    inside = op.And(scaled > low, scaled < high)
    return op.Clip(scaled, low, high), inside
