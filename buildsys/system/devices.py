"""Devices of actions: facts for keys, UUIDs of GPUs for locks.

CUDA sorts GPUs by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID; the driver sorts them by PCI bus id.
With GPUs of several models CUDA's choice is unknown here, so all of them count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from buildsys.system.cpu import cpu_facts, usable_processors

NONE = "none"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
GPU_FACTS = ("name", "compute_capability", "driver", "cuda_driver")
_Gpus = list[dict[str, str]]
_SELECTION = (VISIBLE_DEVICES, "CUDA_DEVICE_ORDER")
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
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    order = os.environ.get("CUDA_DEVICE_ORDER")
    gpus, unordered = _find_gpus(visible, order)
    if not gpus:
        return {f"gpu.{fact}": NONE for fact in GPU_FACTS}
    possible = unordered or gpus
    facts = {f"gpu.{f}": " + ".join(dict.fromkeys(gpu[f] for gpu in possible)) for f in GPU_FACTS}
    if unordered:
        facts["gpu.chosen_by"] = f"CUDA_VISIBLE_DEVICES={visible} CUDA_DEVICE_ORDER={order}"
    return facts


def visible_gpus() -> tuple[dict[str, str], ...]:
    """List uuid, name, compute_capability and drivers of the GPUs visible to CUDA."""
    gpus, _ = _find_gpus(*map(os.environ.get, _SELECTION))
    return tuple(gpus)


def equal_gpus(variables: Iterable[tuple[str, str]] = ()) -> tuple[str, ...]:
    """List UUIDs of equal visible GPUs: a job may run on any.

    Empty for fewer than two, and if ``variables`` of a toolchain select its GPU.
    """
    if not {name for name, _ in variables}.isdisjoint(_SELECTION):
        return ()
    gpus, unordered = _find_gpus(*map(os.environ.get, _SELECTION))
    kinds = {tuple(gpu.get(fact) for fact in GPU_FACTS) for gpu in gpus}
    is_choice = len(gpus) > 1 and len(kinds) == 1 and not unordered
    return tuple(gpu["uuid"] for gpu in gpus) if is_choice else ()


def gpu_uuids(variables: Iterable[tuple[str, str]] = (), *, here: bool = True) -> tuple[str, ...]:
    """List UUIDs of CUDA's possible GPUs with ``variables``, and ``here`` without."""
    uuids: list[str] = []
    for environment in (*([os.environ] if here else []), {**os.environ, **dict(variables)}):
        gpus, unordered = _find_gpus(
            environment.get("CUDA_VISIBLE_DEVICES"), environment.get("CUDA_DEVICE_ORDER")
        )
        uuids += [gpu["uuid"] for gpu in unordered or gpus[:1]]
    return tuple(dict.fromkeys(uuids))


@cache
def _find_gpus(visible: str | None, order: str | None) -> tuple[_Gpus, _Gpus]:
    """List the visible GPUs, and all GPUs if CUDA's choice is unknown."""
    # without importing ctypes
    if not any(os.path.exists(path) for path in _DRIVER_FILES):  # noqa: PTH110
        return [], []
    from buildsys.system.nvml import GpuError, read_gpus

    try:
        gpus, every = read_gpus(visible), read_gpus(None)
    except GpuError:
        return [], []
    is_mixed = len({gpu["name"] for gpu in every}) > 1 and order != "PCI_BUS_ID"
    return gpus, every if is_mixed else []
