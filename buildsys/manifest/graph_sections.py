"""Sections absent from some kinds of models."""

GRAPH_SECTIONS = (  # about the ONNX graph, which a network defined by hand does not have
    "export", "symbolics", "translations", "surgery", "simplify", "convert", "calibration",
    "quantize", "search", "optimize", "quantize_weights",
)  # fmt: skip
NETWORK_SECTIONS = (  # about the network, which a model of commands does not have
    "source", "inputs", "call", "outputs", "dims", "ops", *GRAPH_SECTIONS, "validate", "engines",
    "verify", "bench", "gates",
)  # fmt: skip
