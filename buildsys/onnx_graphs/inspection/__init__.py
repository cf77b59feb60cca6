"""What can be read off an ONNX graph and drawn of it; runs in a process of its own, as it loads onnx."""
