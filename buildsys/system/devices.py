"""Devices of actions: facts for keys, UUIDs of GPUs for locks.

The driver sorts GPUs by PCI bus id. CUDA sorts them by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID,
which all workers have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from buildsys.system.cpu import cpu_facts, usable_processors

NONE = "none"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
GPU_FACTS = ("name", "compute_capability", "driver", "cuda_driver")
_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # dxg: WSL


def device_facts(devices: Iterable[str]) -> dict[str, str]:
    """Collect the facts about each of ``devices``: ``cpu``, ``cores``, ``gpu``."""
    facts: Mapping[str, Callable[[], Mapping[str, str]]] = {
        "cpu": cpu_facts,
        "cores": lambda: {"cpu.cores": str(len(usable_processors()))},
        "gpu": gpu_facts,
    }
    return {label: value for device in devices for label, value in facts[device]().items()}


@cache
def gpu_facts() -> Mapping[str, str]:
    """Return the GPU's parts of an action key; ``none`` without one."""
    gpus = visible_gpus()
    return {
        f"gpu.{fact}": " + ".join(dict.fromkeys(gpu[fact] for gpu in gpus)) or NONE
        for fact in GPU_FACTS
    }


def visible_gpus() -> tuple[dict[str, str], ...]:
    """List uuid, name, compute_capability and drivers of the GPUs visible to CUDA."""
    return _find_gpus(os.environ.get(VISIBLE_DEVICES))


def equal_gpus(variables: Iterable[tuple[str, str]] = ()) -> tuple[str, ...]:
    """List UUIDs of equal visible GPUs: a job may run on any.

    Empty for fewer than two, and if ``variables`` of a toolchain select its GPU.
    """
    gpus = () if VISIBLE_DEVICES in dict(variables) else visible_gpus()
    kinds = {tuple(gpu.get(fact) for fact in GPU_FACTS) for gpu in gpus}
    return tuple(gpu["uuid"] for gpu in gpus) if len(gpus) > 1 and len(kinds) == 1 else ()


def gpu_uuids(variables: Iterable[tuple[str, str]] = (), *, here: bool = True) -> tuple[str, ...]:
    """List UUIDs of the GPUs that CUDA uses with ``variables``, and ``here`` without."""
    own = os.environ.get(VISIBLE_DEVICES)
    selections = [*([own] if here else []), dict(variables).get(VISIBLE_DEVICES, own)]
    return tuple(dict.fromkeys(gpu["uuid"] for name in selections for gpu in _find_gpus(name)[:1]))


@cache
def _find_gpus(visible: str | None) -> tuple[dict[str, str], ...]:
    # without importing ctypes
    if not any(os.path.exists(path) for path in _DRIVER_FILES):  # noqa: PTH110
        return ()
    from buildsys.system.nvml import GpuError, read_gpus

    try:
        return tuple(read_gpus(visible))
    except GpuError:
        return ()
