"""From a torch module to an ONNX file that is exactly what the manifest asked for."""
