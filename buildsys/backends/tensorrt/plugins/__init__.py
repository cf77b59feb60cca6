"""TensorRT plugins: Python files and shared libraries."""
