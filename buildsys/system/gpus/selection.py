"""GPUs selected by CUDA: facts for action keys, UUIDs for locks.

CUDA sorts GPUs by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID; the driver sorts them by PCI bus id.
With GPUs of several models CUDA's choice is unknown here, so all of them count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache

NONE = "none"
GPU_FACTS = ("name", "compute_capability", "driver", "cuda_driver")
_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # dxg: WSL


@cache
def gpu_facts() -> Mapping[str, str]:
    """Return the GPU's parts of an action key; ``none`` without one."""
    nothing = {f"gpu.{fact}": NONE for fact in GPU_FACTS}
    if not has_driver():
        return nothing
    from buildsys.system.gpus.devices import GpuError, read_gpus

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    order = os.environ.get("CUDA_DEVICE_ORDER")
    try:
        gpus, every = read_gpus(visible), read_gpus(None)
    except GpuError:
        return nothing
    if not gpus:
        return nothing
    chosen = {}
    if len({gpu["name"] for gpu in every}) > 1 and order != "PCI_BUS_ID":
        gpus = every
        chosen["gpu.chosen_by"] = f"CUDA_VISIBLE_DEVICES={visible} CUDA_DEVICE_ORDER={order}"
    facts = {f"gpu.{fact}": " + ".join(dict.fromkeys(g[fact] for g in gpus)) for fact in GPU_FACTS}
    return {**facts, **chosen}


def gpu_uuids(variables: Iterable[tuple[str, str]] = ()) -> tuple[str, ...]:
    """Return UUIDs of CUDA's possible GPUs, here or with further variables."""
    if not has_driver():
        return ()
    environments = ({**os.environ, **changes} for changes in ({}, dict(variables)))
    selected = (
        _first_gpus(environment.get("CUDA_VISIBLE_DEVICES"), environment.get("CUDA_DEVICE_ORDER"))
        for environment in environments
    )
    return tuple(dict.fromkeys(uuid for uuids in selected for uuid in uuids))


def has_driver() -> bool:
    """Return True if an NVIDIA driver is loaded, found without importing ctypes."""
    return any(os.path.exists(path) for path in _DRIVER_FILES)  # noqa: PTH110


@cache
def _first_gpus(visible: str | None, order: str | None) -> tuple[str, ...]:
    from buildsys.system.gpus.devices import GpuError, read_uuids

    try:
        gpus, every = read_uuids(visible), read_uuids(None)
    except GpuError:
        return ()
    if len({name for _, name in every}) > 1 and order != "PCI_BUS_ID":
        return tuple(uuid for uuid, _ in every)
    return tuple(uuid for uuid, _ in gpus[:1])
