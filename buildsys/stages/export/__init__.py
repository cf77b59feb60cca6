"""Export of a network to a checked ONNX file."""
