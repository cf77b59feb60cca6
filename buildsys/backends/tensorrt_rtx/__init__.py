"""The TensorRT-RTX backend: the TensorRT backend with another library."""
