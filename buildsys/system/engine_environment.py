"""Libraries, GPU, driver and CPU of an engine's build or run. Standard library only.

The stage that builds an engine records these facts; the compatibility check compares them with
those of the machine it runs on.
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

from buildsys.system.backend_registry import describe_backend
from buildsys.system.cpu import cpu_model, engine_instructions
from buildsys.system.nvml import GpuError, read_gpus

# tensorrt_cu12, tensorrt_rtx_cu13_libs
_CUDA_IN_NAME = re.compile(r"(?:^|[-_])cu(\d{2})(?:[-_]|$)")
_GPU_FACTS = {
    "gpu": "name", "compute_capability": "compute_capability", "driver": "driver",
    "cuda": "cuda_driver",
}  # fmt: skip


class MissingLibraryError(Exception):
    """An engine library is not installed (no text) or cannot be loaded."""


def built_with(backend: str, device: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the environment of an engine built now; loads the backend's library.

    ``device`` is the one the backend uses: with several GPUs, CUDA's first may not be NVML's first.
    """
    module = describe_backend(backend).module
    facts: dict[str, Any] = {module: library_version(module), "platform": platform_name()}
    if device.get("kind") != "gpu":
        return {**facts, "cpu": cpu_model(), "instructions": engine_instructions()}
    runtime = cuda_of_library(module)
    used = {"gpu": device.get("name"), "compute_capability": device.get("compute_capability")}
    first: dict[str, str] = next(iter(visible_gpus()), {})
    gpu = {**first, **{name: str(fact) for name, fact in used.items() if fact}}
    return {**facts, **({"cuda_runtime": runtime} if runtime else {}), **gpu}


def library_version(module: str) -> str:
    """Load an engine library and return its version.

    Raises: MissingLibraryError: it is not installed or cannot be loaded.
    """
    try:
        loaded = sys.modules.get(module) or import_module(module)
    except ModuleNotFoundError as error:
        other = f"the module {error.name}, which it needs, is not installed"
        raise MissingLibraryError("" if error.name == module else other) from error
    except (ImportError, OSError, RuntimeError) as error:  # a shared library is missing or unfit
        raise MissingLibraryError(f"it cannot be loaded: {' '.join(str(error).split())}") from error
    # OpenVINO's continues with build and branch: 2026.4.1-22982-…
    version = str(getattr(loaded, "__version__", "")).partition("-")[0]
    try:
        return version or metadata.version(module)
    except metadata.PackageNotFoundError:
        return ""


def cuda_of_library(module: str) -> str:
    """Read the CUDA major version in an installed library's name, or ""."""
    for folder in map(Path, sys.path):
        for entry in sorted(folder.glob(f"{module}_cu*.dist-info")):
            match = _CUDA_IN_NAME.search(entry.name.partition(".")[0].rpartition("-")[0])
            if match:
                return match[1]
    return ""


def visible_gpus() -> list[dict[str, str]]:
    """List the visible GPUs in the driver's order. [] without a working driver.

    ``cuda`` is the latest version that the driver supports.
    """
    try:
        gpus = read_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    except GpuError:
        return []
    return [{name: gpu[fact] for name, fact in _GPU_FACTS.items()} for gpu in gpus]


def why_no_gpu() -> str:
    """Explain the absence of a GPU, as a clause."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        if read_gpus(None):
            return f"CUDA_VISIBLE_DEVICES={visible} hides the GPUs of this machine"
    except GpuError as error:
        missing = "cannot open shared object" in str(error)
        broken = f"the NVIDIA driver does not work ({error})"
        return "no NVIDIA driver is installed" if missing else broken
    return "the NVIDIA driver finds no GPU"


def platform_name() -> str:
    """Return operating system and processor family: ``Linux x86_64``."""
    return f"{platform.system()} {platform.machine()}"


def version_numbers(version: str) -> tuple[int, ...]:
    """Parse the numbers in a version, e.g. (8, 6, 1, 6), or ()."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
