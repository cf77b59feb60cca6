"""NVIDIA GPUs as their management library (NVML) describes them, without a CUDA context."""
