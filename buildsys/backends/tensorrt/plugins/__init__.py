"""TensorRT plugins: bundled, Python files and shared libraries."""
