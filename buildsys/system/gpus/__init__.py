"""NVIDIA GPUs as described by NVML, without a CUDA context."""
