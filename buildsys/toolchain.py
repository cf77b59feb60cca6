"""Facts about what runs the stages: library versions, Python, CPU and GPU. Nothing is imported to find them."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ABSENT = "absent"
NONE = "none"
GPU_FACTS = ("name", "compute_capability", "driver", "cuda_driver")
_OTHER_BUILDS = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino")}  # the same module under other names
_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # dxg: WSL
_INSTRUCTION_SETS = re.compile(
    r"\b(sse4_2|avx|avx2|fma|f16c|avx_vnni|avx512\w*|amx_\w+|asimd\w*|sve\w*|i8mm|bf16|fphp)\b"
)


def tool_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each distribution, ``absent`` for one that is not installed."""
    return {name: distribution_version(name) for name in names}


@cache
def distribution_version(name: str) -> str:
    """Return the version of a distribution (``-``, ``_`` and ``.`` in names are alike), or ``absent``."""
    installed = _installed(tuple(sys.path))
    builds = (_normalized(name), *_OTHER_BUILDS.get(name, ()))
    found = {build: installed[build] for build in builds if build in installed}
    if found:
        return " + ".join(found[build] if build == builds[0] else f"{found[build]} ({build})" for build in found)
    from importlib import metadata  # slow, and only this finds eggs, zip files and what finders add

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ABSENT


def python_facts() -> dict[str, str]:
    """Return the interpreter's implementation and version."""
    return {"python": f"{platform.python_implementation()} {platform.python_version()}"}


@cache
def cpu_facts() -> Mapping[str, str]:
    """Return the CPU's model, the vector instruction sets that engines use, and the number of its cores."""
    described = _first_processor()
    model = described.get("model name") or described.get("CPU part") or platform.processor() or platform.machine()
    flags = described.get("flags") or described.get("Features") or ""
    return {
        "cpu.model": f"{model} ({platform.machine()})",
        "cpu.instructions": " ".join(sorted(set(_INSTRUCTION_SETS.findall(flags)))),
        "cpu.cores": str(_usable_cores()),
    }


@cache
def gpu_facts() -> Mapping[str, str]:
    """Return name, compute capability, driver and CUDA driver version of the GPU in use, ``none`` without one.

    CUDA_VISIBLE_DEVICES is honoured. Where several kinds of GPU are visible, all of them are named.
    """
    nothing = {f"gpu.{fact}": NONE for fact in GPU_FACTS}
    if not any(os.path.exists(path) for path in _DRIVER_FILES):  # noqa: PTH110 - before ctypes is worth its import
        return nothing
    from buildsys.nvml import GpuError, read_gpus

    try:
        gpus = read_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    except GpuError:
        return nothing
    facts = {f"gpu.{fact}": " + ".join(dict.fromkeys(gpu[fact] for gpu in gpus)) for fact in GPU_FACTS}
    return facts if gpus else nothing


def device_facts(devices: Iterable[str]) -> dict[str, str]:
    """Return the facts of the devices that an action names: ``cpu``, ``gpu``."""
    known = {"cpu": cpu_facts, "gpu": gpu_facts}
    return {label: value for device in devices for label, value in known[device]().items()}


@cache
def _installed(search_path: tuple[str, ...]) -> Mapping[str, str]:
    """Return normalized name -> version of all distributions, read off the names of their folders.

    Ten times as fast as asking importlib.metadata for each, which parses a page of metadata.
    """
    versions: dict[str, str] = {}
    for folder in search_path:
        try:
            entries = os.listdir(folder or ".")  # noqa: PTH208 - only the names are wanted
        except OSError:
            continue  # a zip file, or a folder that does not exist: both are usual on sys.path
        for entry in entries:
            if entry.endswith(".dist-info"):
                name, _, version = entry.removesuffix(".dist-info").partition("-")
                versions.setdefault(_normalized(name), version)
    return versions


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _first_processor() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo; the others are not even generated."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            fields: dict[str, str] = {}
            for line in lines:
                if not line.strip():
                    break
                name, _, value = line.partition(":")
                fields[name.strip()] = value.strip()
            return fields
    except OSError:
        return {}


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
