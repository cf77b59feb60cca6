"""What NVIDIA's management library says about the GPUs, through ctypes: no CUDA context, no Python package."""

from buildsys.nvml.gpus import read_gpus, read_uuids
from buildsys.nvml.library import GpuError

__all__ = ["GpuError", "read_gpus", "read_uuids"]
