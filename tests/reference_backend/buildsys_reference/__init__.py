"""A backend of buildsys: the reference implementation of ONNX."""
