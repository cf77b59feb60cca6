"""What a person asks of a GPU before anything runs on it: memory, and whether it is cut into MIG instances.

Source: NVML API reference, "Device Queries" (nvmlDeviceGetMemoryInfo), "Multi Instance GPU Management"
(nvmlDeviceGetMigMode).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from buildsys.system.gpus.devices import described_gpus
from buildsys.system.gpus.nvml import Handle, session


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@dataclass(frozen=True)
class GpuDetails:
    """One GPU that CUDA would show. None and an empty text: it does not tell."""

    name: str
    compute_capability: str
    driver: str
    cuda_driver: str
    memory_bytes: int | None
    free_bytes: int | None
    mig: str  # "on", "off", "" where the GPU knows no such thing

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def read_details(visible: str | None) -> list[GpuDetails]:
    """Return the GPUs that CUDA would show; ``visible`` is as for ``read_gpus``.

    Raises: GpuError: no driver, or one that does not work.
    """
    with session() as nvml:
        return [_details(nvml, handle, facts) for handle, facts in described_gpus(nvml, visible)]


def _details(nvml: ctypes.CDLL, handle: Handle, facts: Mapping[str, str]) -> GpuDetails:
    memory = _Memory()
    told = not nvml.nvmlDeviceGetMemoryInfo(
        handle, ctypes.byref(memory)
    )  # of a MIG instance it may not be
    return GpuDetails(
        **facts,
        memory_bytes=memory.total if told else None,
        free_bytes=memory.free if told else None,
        mig=_mig(nvml, handle),
    )


def _mig(nvml: ctypes.CDLL, handle: Handle) -> str:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    if nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(current), ctypes.byref(pending)):
        return ""
    return "on" if current.value else "off"
