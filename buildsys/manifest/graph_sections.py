"""Sections of a manifest about the ONNX graph, which a network defined by hand does not have."""

GRAPH_SECTIONS = (
    "export", "symbolics", "translations", "surgery", "simplify", "convert", "calibration",
    "quantize", "search", "optimize", "quantize_weights",
)  # fmt: skip
