"""What NVIDIA's management library says about the GPUs, through ctypes: no CUDA context, no Python package."""

from buildsys.system.gpus.devices import read_gpus, read_uuids
from buildsys.system.gpus.nvml import GpuError

__all__ = ["GpuError", "read_gpus", "read_uuids"]
