"""What an engine was built with, and what there is to run it: libraries, GPU, driver, processor. Standard library only.

The stage that builds an engine records these facts, and the doctor compares them with those of the machine at hand.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from buildsys.system.cpu import cpu_model, engine_instructions
from buildsys.system.gpus.devices import GpuError, read_gpus

LIBRARIES = {
    "onnxruntime": "onnxruntime",
    "tensorrt": "tensorrt",
    "tensorrt_rtx": "tensorrt_rtx",
}  # backend -> module
_CUDA_OF_NAME = re.compile(
    r"(?:^|[-_])cu(\d{2})(?:[-_]|$)"
)  # tensorrt_cu12, tensorrt_rtx_cu13_libs


class MissingLibraryError(Exception):
    """A library cannot be had here: its text says why."""


def built_with(backend: str, device: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an engine that is built now is built with; the backend's library is loaded.

    ``device`` is what the backend says of its own: among several GPUs, CUDA's first need not be NVML's.
    """
    module = LIBRARIES.get(backend, backend)
    facts: dict[str, Any] = {module: library_version(module), "platform": platform_name()}
    if device.get("kind") != "gpu":
        return {**facts, "cpu": cpu_model(), "instructions": engine_instructions()}
    runtime = cuda_of_library(module)
    chosen = {"gpu": device.get("name"), "compute_capability": device.get("compute_capability")}
    gpu = {**first_gpu(), **{name: str(fact) for name, fact in chosen.items() if fact}}
    return {**facts, **({"cuda_runtime": runtime} if runtime else {}), **gpu}


def library_version(module: str) -> str:
    """Return the version of an engine library.

    Raises: MissingLibraryError: it is not installed, or cannot be loaded.
    """
    try:
        loaded = sys.modules.get(module) or import_module(module)
    except ModuleNotFoundError as error:
        missing = (
            f"the module {error.name}, which it needs, is not installed"
            if error.name != module
            else ""
        )
        raise MissingLibraryError(missing) from error
    except (
        ImportError,
        OSError,
        RuntimeError,
    ) as error:  # a shared library is missing or does not fit
        raise MissingLibraryError(f"it cannot be loaded: {' '.join(str(error).split())}") from error
    return str(getattr(loaded, "__version__", "")) or _installed_version(module)


def cuda_of_library(module: str) -> str:
    """Return the major version of CUDA that an installed library is made for, "" where its name does not say it."""
    for folder in map(Path, sys.path):
        for entry in sorted(folder.glob(f"{module}*.dist-info")):
            found = _CUDA_OF_NAME.search(entry.name.partition(".")[0].rpartition("-")[0])
            if found and entry.name.startswith(f"{module}_cu"):
                return found[1]
    return ""


def first_gpu() -> dict[str, str]:
    """Return gpu, compute_capability, driver and cuda (the driver's) of the first GPU that CUDA shows; {} without."""
    try:
        gpus = read_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    except GpuError:
        return {}
    if not gpus:
        return {}
    names = {
        "gpu": "name",
        "compute_capability": "compute_capability",
        "driver": "driver",
        "cuda": "cuda_driver",
    }
    return {name: gpus[0][fact] for name, fact in names.items()}


def kinds_of_gpu() -> list[str]:
    """Return the GPUs that CUDA shows by name, each kind once; more than one: which comes first is CUDA's choice."""
    try:
        return list(
            dict.fromkeys(gpu["name"] for gpu in read_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")))
        )
    except GpuError:
        return []


def why_no_gpu() -> str:
    """Return why no GPU can be used here, as the end of a sentence."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        if read_gpus(None):
            return f"CUDA_VISIBLE_DEVICES={visible} hides the GPUs of this machine"
    except GpuError as error:
        missing = "cannot open shared object" in str(error)
        return (
            "no NVIDIA driver is installed"
            if missing
            else f"the NVIDIA driver does not work ({error})"
        )
    return "the NVIDIA driver finds no GPU"


def platform_name() -> str:
    """Return system and processor family: ``Linux x86_64``."""
    return f"{platform.system()} {platform.machine()}"


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (8, 6, 1, 6) of ``8.6.1.6``; () where it has none."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _installed_version(module: str) -> str:
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        return ""
