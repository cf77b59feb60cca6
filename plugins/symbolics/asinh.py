"""asinh for the torchscript exporter, to be named in a manifest."""

from __future__ import annotations

from typing import Any


def asinh(g: Any, x: Any) -> Any:
    """Write ONNX's own operator, which is there from opset 9 on."""
    return g.op("Asinh", x)
