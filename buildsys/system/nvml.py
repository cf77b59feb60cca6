"""The GPUs of this machine and the ones CUDA shows.

nvidia-ml-py takes 60 ms to import, so it is imported only where a driver is installed.

Source: NVML API reference, "System Queries", "Device Queries", "Multi Instance GPU Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from buildsys.errors import BuildsysError

_LIBRARY = "libnvidia-ml.so.1"


class GpuError(BuildsysError):
    """The NVIDIA driver is missing or does not answer."""


@dataclass(frozen=True)
class GpuDetails:
    """One GPU visible to CUDA; None and "" stand for unknown."""

    name: str
    compute_capability: str
    driver: str
    cuda_driver: str
    memory_bytes: int | None
    free_bytes: int | None
    mig: str  # "on", "off", or "" if the GPU does not support MIG


@contextmanager
def nvml_session(*, fallback: bool = False) -> Iterator[Any]:
    """Initialize NVML and yield the module ``pynvml``.

    ``fallback`` accepts an interpreter without nvidia-ml-py; the few functions of
    ``nvml_fallback`` must then do.
    Raises: GpuError: the driver is missing or an NVML call fails.
    """
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise GpuError(f"{_LIBRARY}: {error}") from error
    try:
        nvml: Any = import_module("pynvml")
    except ModuleNotFoundError as error:
        if not fallback:
            raise GpuError("nvidia-ml-py is missing: pip install 'buildsys[gpu]'") from error
        nvml = import_module("buildsys.system.nvml_fallback")
    try:
        nvml.nvmlInit()
        try:
            yield nvml
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise GpuError(f"the NVIDIA driver does not answer: {error}") from error


def read_gpus(visible: str | None) -> list[dict[str, str]]:
    """List uuid, name, compute_capability, driver and cuda_driver of visible GPUs.

    ``visible`` is CUDA_VISIBLE_DEVICES: None for all, else indices (in PCI order) or UUID
    prefixes, up to the first that does not exist.

    Raises: GpuError: the driver is missing or does not answer.
    """
    with nvml_session(fallback=True) as nvml:
        return [
            {"uuid": nvml.nvmlDeviceGetUUID(device), **_describe(nvml, device)}
            for device in _visible_devices(nvml, visible)
        ]


def read_details(visible: str | None) -> list[GpuDetails]:
    """List visible GPUs with memory and MIG mode, as ``read_gpus``.

    Raises: GpuError: the driver is missing or does not answer.
    """
    details = []
    with nvml_session() as nvml:
        for device in _visible_devices(nvml, visible):
            # not by every MIG instance
            memory = reported(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
            mig = reported(nvml, nvml.nvmlDeviceGetMigMode, device)
            details.append(
                GpuDetails(
                    **_describe(nvml, device),
                    memory_bytes=memory and memory.total,
                    free_bytes=memory and memory.free,
                    mig="" if mig is None else "on" if mig[0] else "off",
                )
            )
    return details


def reported(nvml: Any, query: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of an NVML query, None if unsupported."""
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None


def _describe(nvml: Any, device: Any) -> dict[str, str]:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
    cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return {
        "name": nvml.nvmlDeviceGetName(device),
        "compute_capability": f"{major}.{minor}",
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
    }


def _visible_devices(nvml: Any, visible: str | None) -> list[Any]:
    devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if visible is None:
        return devices
    chosen = []
    for name in (part.strip() for part in visible.split(",")):
        device = None
        if name.isdigit():
            device = devices[int(name)] if int(name) < len(devices) else None
        elif name.startswith("MIG-"):
            device = reported(nvml, nvml.nvmlDeviceGetHandleByUUID, name)
        elif name.startswith("GPU-"):
            device = next((d for d in devices if nvml.nvmlDeviceGetUUID(d).startswith(name)), None)
        if device is None:
            break  # CUDA ignores everything after an unknown name as well
        chosen.append(device)
    return chosen
