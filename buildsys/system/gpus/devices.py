"""Which GPUs there are, and which of them CUDA would show.

Source: NVML API reference, "System Queries", "Device Queries".
"""

from __future__ import annotations

import ctypes

from buildsys.system.gpus.nvml import Handle, check, session, text


def read_gpus(visible: str | None) -> list[dict[str, str]]:
    """Return name, compute_capability, driver and cuda_driver of each GPU that CUDA would show.

    ``visible`` is CUDA_VISIBLE_DEVICES: None for all, else indices (in PCI order) or UUID prefixes, up to
    the first that does not exist.

    Raises: GpuError: no driver, or one that does not work.
    """
    with session() as nvml:
        return [facts for _, facts in described_gpus(nvml, visible)]


def described_gpus(nvml: ctypes.CDLL, visible: str | None) -> list[tuple[Handle, dict[str, str]]]:
    """Return each GPU that CUDA would show with what ``read_gpus`` tells of it."""
    driver = {"driver": text(nvml.nvmlSystemGetDriverVersion), "cuda_driver": _cuda_version(nvml)}
    return [(handle, {**_describe(nvml, handle), **driver}) for handle in _visible(nvml, visible)]


def read_uuids(visible: str | None) -> list[tuple[str, str]]:
    """Return UUID and name of each GPU that CUDA would show; ``visible`` is as for ``read_gpus``.

    Raises: GpuError: no driver, or one that does not work.
    """
    with session() as nvml:
        handles = _visible(nvml, visible)
        return [
            (text(nvml.nvmlDeviceGetUUID, handle), text(nvml.nvmlDeviceGetName, handle))
            for handle in handles
        ]


def _visible(nvml: ctypes.CDLL, visible: str | None) -> list[Handle]:
    count = ctypes.c_uint()
    check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
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


def _find(nvml: ctypes.CDLL, handles: list[Handle], name: str) -> Handle | None:
    if name.isdigit():
        return handles[int(name)] if int(name) < len(handles) else None
    if name.startswith("MIG-"):
        handle = Handle()
        status = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        return None if status else handle
    if not name.startswith("GPU-"):
        return None
    return next(
        (handle for handle in handles if text(nvml.nvmlDeviceGetUUID, handle).startswith(name)),
        None,
    )


def _by_index(nvml: ctypes.CDLL, index: int) -> Handle:
    handle = Handle()
    check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)))
    return handle


def _describe(nvml: ctypes.CDLL, handle: Handle) -> dict[str, str]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    check(nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)))
    return {
        "name": text(nvml.nvmlDeviceGetName, handle),
        "compute_capability": f"{major.value}.{minor.value}",
    }


def _cuda_version(nvml: ctypes.CDLL) -> str:
    version = ctypes.c_int()
    check(nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version)))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
