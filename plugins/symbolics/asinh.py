"""asinh for the torchscript exporter."""

from __future__ import annotations

from typing import Any


def asinh(g: Any, x: Any) -> Any:
    """Write ONNX's operator, available from opset 9."""
    return g.op("Asinh", x)
