"""asinh for the torchscript exporter, registered on import."""

from __future__ import annotations

from typing import Any

from torch.onnx import symbolic_helper
from torch.onnx._internal.torchscript_exporter import registration


@registration.onnx_symbolic("aten::asinh", opset=9)
@symbolic_helper.parse_args("v")
def asinh(g: Any, x: Any) -> Any:
    """Write ONNX's operator."""
    return g.op("Asinh", x)
