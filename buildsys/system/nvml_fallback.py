# ruff: noqa: D103, N802, N816 - functions are named and documented as in pynvml
"""NVML queries to identify GPUs and driver without nvidia-ml-py.

``buildsys.can_run`` and ``python -m buildsys.doctor`` need the standard library only.
Source: NVML API reference, "System Queries", "Device Queries".
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any


class NVMLError(Exception):
    """An NVML call failed."""


def nvmlInit() -> None:
    _call("nvmlInit_v2")


def nvmlShutdown() -> None:
    _call("nvmlShutdown")


def nvmlSystemGetDriverVersion() -> str:
    return _text("nvmlSystemGetDriverVersion")


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    version = ctypes.c_int()
    _call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version))
    return version.value


def nvmlDeviceGetCount() -> int:
    count = ctypes.c_uint()
    _call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    return count.value


def nvmlDeviceGetCudaComputeCapability(device: Any) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _handle(function: str, identifier: int | str) -> ctypes.c_void_p:
    device = ctypes.c_void_p()
    name = identifier.encode() if isinstance(identifier, str) else identifier
    _call(function, name, ctypes.byref(device))
    return device


def _text(function: str, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(96)  # NVML's *_BUFFER_SIZE constants are at most this
    _call(function, *arguments, buffer, len(buffer))
    return buffer.value.decode(errors="replace")


def _call(function: str, *arguments: Any) -> None:
    status = getattr(ctypes.CDLL("libnvidia-ml.so.1"), function)(*arguments)
    if status:
        raise NVMLError(f"{function} failed with NVML error {status}")


nvmlDeviceGetHandleByIndex = partial(_handle, "nvmlDeviceGetHandleByIndex_v2")
nvmlDeviceGetHandleByUUID = partial(_handle, "nvmlDeviceGetHandleByUUID")
nvmlDeviceGetName = partial(_text, "nvmlDeviceGetName")
nvmlDeviceGetUUID = partial(_text, "nvmlDeviceGetUUID")
