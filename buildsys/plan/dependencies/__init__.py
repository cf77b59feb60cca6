"""File dependencies: imports, C headers, external data of ONNX files and images."""
