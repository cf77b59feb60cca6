"""The GPUs of this machine as the CUDA driver sees them.

``cuda.bindings`` is imported only when GPUs are looked for: engines that run on a CPU do without
it.

Source: CUDA Driver API reference, "Initialization", "Version Management", "Device Management".
"""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from buildsys.errors import StageError

INSTALL_BINDINGS = f"{sys.executable} -m pip install cuda-bindings"
_NO_DRIVER = "no NVIDIA driver is installed"
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
    """The CUDA driver and its GPUs; ``missing`` explains their absence."""

    cuda_version: str  # newest CUDA that the driver supports, "" without a driver
    gpus: tuple[Gpu, ...]
    missing: str = ""
    remedy: str = ""  # replaces the caller's hint if something can be installed


@lru_cache(maxsize=1)
def find_driver() -> Driver:
    """Find the driver and its GPUs; their absence is not an error."""
    try:
        from cuda.bindings import driver as cuda
    except ImportError as error:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return Driver("", (), _NO_DRIVER)
        return Driver("", (), f"cuda-bindings cannot be imported ({error})", INSTALL_BINDINGS)
    try:
        (status,) = cuda.cuInit(0)
    except RuntimeError:  # the bindings do not find the driver's library
        return Driver("", (), _NO_DRIVER)
    if status == cuda.CUresult.CUDA_ERROR_NO_DEVICE:
        return Driver("", (), _NO_GPU)
    if status:
        return Driver("", (), f"the NVIDIA driver fails ({describe_error(status)})")
    version = call(cuda.cuDriverGetVersion)
    gpus = []
    for index in range(call(cuda.cuDeviceGetCount)):
        device = call(cuda.cuDeviceGet, index)
        attributes = cuda.CUdevice_attribute
        major, minor = (
            call(cuda.cuDeviceGetAttribute, attribute, device)
            for attribute in (
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        name = _text(call(cuda.cuDeviceGetName, 256, device))
        gpus.append(Gpu(index, name, f"{major}.{minor}", call(cuda.cuDeviceTotalMem, device)))
    cuda_version = f"{version // 1000}.{version % 1000 // 10}"
    return Driver(cuda_version, tuple(gpus), "" if gpus else _NO_GPU)


def gpu_facts() -> dict[str, Any]:
    """Describe the first GPU and the driver, or the reason for none."""
    driver = find_driver()
    if not driver.gpus:
        return {"kind": "gpu", "missing": driver.missing}
    gpu = driver.gpus[0]
    return {
        "kind": "gpu",
        "name": gpu.name,
        "compute_capability": gpu.compute_capability,
        "memory_bytes": gpu.memory_bytes,
        "driver_cuda": driver.cuda_version,
    }


def pci_bus_id(index: int) -> str:
    """Return a GPU's PCI address, e.g. ``0000:65:00.0``, as NVML knows it."""
    from cuda.bindings import driver as cuda

    return _text(call(cuda.cuDeviceGetPCIBusId, 32, call(cuda.cuDeviceGet, index)))


def call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """Call a function of ``cuda.bindings.driver``; return its result without the status."""
    try:
        answer = function(*arguments)
    except RuntimeError as error:  # the driver is older than the bindings and has no such function
        raise StageError(
            f"the CUDA driver has no {function.__name__}: {error}",
            f"install cuda-bindings of the driver's version of CUDA: {INSTALL_BINDINGS}==VERSION",
        ) from error
    if answer[0]:
        text = f"the CUDA driver's {function.__name__} failed: {describe_error(answer[0])}"
        hint = "if the GPU is out of memory, end other programs (nvidia-smi), or use smaller dims"
        raise StageError(text, hint)
    return answer[1] if len(answer) == 2 else answer[1:]


def describe_error(status: Any) -> str:
    """Describe an error by CUDA's name, text and number."""
    from cuda.bindings import driver as cuda

    failed, text = cuda.cuGetErrorString(status)
    name = getattr(status, "name", "unknown to cuda-bindings")
    return f"{name}, error {int(status)}" + ("" if failed else f": {_text(text)}")


def _text(characters: bytes) -> str:
    return characters.partition(b"\0")[0].decode(errors="replace")
