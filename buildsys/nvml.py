"""What NVIDIA's management library says about the GPUs, through ctypes: no CUDA context, no Python package.

Source: NVML API reference, "Initialization and Cleanup", "System Queries", "Device Queries".
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from buildsys.errors import BuildsysError

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96  # more than any of NVML's *_BUFFER_SIZE constants for the fields that are read here


class GpuError(BuildsysError):
    """The driver's library is missing or refuses to answer."""


def read_gpus(visible: str | None) -> list[dict[str, str]]:
    """Return name, compute_capability, driver and cuda_driver of each GPU that CUDA would show.

    ``visible`` is CUDA_VISIBLE_DEVICES: None for all, else indices (in PCI order) or UUID prefixes, up to
    the first that does not exist.

    Raises: GpuError: no driver, or one that does not work.
    """
    with _session() as nvml:
        driver = {"driver": _text(nvml.nvmlSystemGetDriverVersion), "cuda_driver": _cuda_version(nvml)}
        return [{**_describe(nvml, handle), **driver} for handle in _visible(nvml, visible)]


@contextmanager
def _session() -> Iterator[ctypes.CDLL]:
    try:
        nvml = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise GpuError(f"{_LIBRARY}: {error}") from error
    _check(nvml.nvmlInit_v2())
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _visible(nvml: ctypes.CDLL, visible: str | None) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint()
    _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
    handles = [_by_index(nvml, index) for index in range(count.value)]
    if visible is None:
        return handles
    chosen = []
    for name in (part.strip() for part in visible.split(",")):
        found = _find(nvml, handles, name)
        if found is None:
            break  # as CUDA does: what comes after an unknown name is not visible either
        chosen.append(found)
    return chosen


def _find(nvml: ctypes.CDLL, handles: list[ctypes.c_void_p], name: str) -> ctypes.c_void_p | None:
    if name.isdigit():
        return handles[int(name)] if int(name) < len(handles) else None
    if name.startswith("MIG-"):
        handle = ctypes.c_void_p()
        status = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        return None if status else handle
    if not name.startswith("GPU-"):
        return None
    return next((handle for handle in handles if _text(nvml.nvmlDeviceGetUUID, handle).startswith(name)), None)


def _by_index(nvml: ctypes.CDLL, index: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)))
    return handle


def _describe(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> dict[str, str]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)))
    return {"name": _text(nvml.nvmlDeviceGetName, handle), "compute_capability": f"{major.value}.{minor.value}"}


def _cuda_version(nvml: ctypes.CDLL) -> str:
    version = ctypes.c_int()
    _check(nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version)))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _text(query: Any, *handle: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(_TEXT_BYTES)
    _check(query(*handle, buffer, len(buffer)))
    return buffer.value.decode(errors="replace")


def _check(status: int) -> None:
    if status:
        raise GpuError(f"NVML answers with error {status}")
