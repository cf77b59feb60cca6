"""Description, comparison and drawing of ONNX graphs. Runs in a child process."""
