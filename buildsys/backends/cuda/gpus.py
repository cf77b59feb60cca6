"""The GPUs of this machine as CUDA sees them.

Source: CUDA Driver API reference, "Initialization", "Version Management", "Device Management".
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

from buildsys.backends.cuda.calls import NO_DEVICE, call, error_text, library, status_of

_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_NO_GPU = "the NVIDIA driver finds no GPU"


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it."""

    index: int
    name: str
    compute_capability: str  # "8.9"
    memory_bytes: int


@dataclass(frozen=True)
class Driver:
    """The CUDA driver of this machine and its GPUs; ``missing`` says why there are none."""

    cuda_version: str  # newest CUDA that the driver can run, "" without a driver
    gpus: tuple[Gpu, ...]
    missing: str = ""


@lru_cache(maxsize=1)
def find_driver() -> Driver:
    """Return what this machine has. A machine without a GPU is an answer, not an error."""
    try:
        library()
    except OSError:
        return Driver("", (), "no NVIDIA driver is installed")
    status = status_of("cuInit", 0)
    if status:
        return Driver(
            "",
            (),
            _NO_GPU if status == NO_DEVICE else f"the NVIDIA driver fails ({error_text(status)})",
        )
    version, count = ctypes.c_int(), ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGetCount", ctypes.byref(count))
    gpus = tuple(_gpu(index) for index in range(count.value))
    return Driver(
        f"{version.value // 1000}.{version.value % 1000 // 10}", gpus, "" if gpus else _NO_GPU
    )


def device_handle(index: int) -> ctypes.c_int:
    """Return CUDA's handle of the GPU with this number."""
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
    return device


def pci_bus_id(index: int) -> str:
    """Return where a GPU sits, as ``0000:65:00.0``: other libraries of the driver know it by this."""
    place = ctypes.create_string_buffer(32)
    call("cuDeviceGetPCIBusId", place, ctypes.c_int(len(place)), device_handle(index))
    return place.value.decode(errors="replace")


def _gpu(index: int) -> Gpu:
    device = device_handle(index)
    name = ctypes.create_string_buffer(256)
    memory = ctypes.c_size_t()
    call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
    call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    capability = f"{_attribute(device, _CAPABILITY_MAJOR)}.{_attribute(device, _CAPABILITY_MINOR)}"
    return Gpu(index, name.value.decode(errors="replace"), capability, memory.value)


def _attribute(device: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), device)
    return value.value
