"""ONNX files and tensors: load, save, compare, inspect, round."""
