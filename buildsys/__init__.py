"""Declarative builds of inference engines from PyTorch and ONNX models."""

__version__ = "0.1.0"
