"""What decides whether an engine runs on a machine: library, version, GPU, driver, processor.

Source: TensorRT documentation, "Engine Compatibility" and "Support Matrix" (11.4); TensorRT-RTX documentation,
"Engine Compatibility" and "CPU-Only AOT and TensorRT-RTX Engines".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.system.compatibility.engine_record import Record
from buildsys.system.compatibility.verdict import Reason
from buildsys.system.cpu import engine_instructions
from buildsys.system.engine_environment import (
    LIBRARIES,
    MissingLibraryError,
    cuda_of_library,
    first_gpu,
    kinds_of_gpu,
    library_version,
    numbers_of,
    platform_name,
    why_no_gpu,
)

TITLES = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
_PACKAGES = {"onnxruntime": "onnxruntime", "tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}
_NEWER_MAJORS = {
    (8, 10),
    (10, 11),
}  # the only runtimes of another major version that take version compatible engines
_DRIVERS = {11: "450.80", 12: "525.60", 13: "580.65"}  # the oldest for each CUDA, on Linux
_AMPERE = (8, 0)
_LAYOUTS = ("avx", "avx2", "avx512f")  # ONNX Runtime blocks the channels of weights by their width
_RELEASE = 3  # numbers of a version that make it another engine format


def obstacles(record: Record) -> Iterator[Reason]:
    """Yield everything about this machine that keeps a recorded engine from running."""
    yield from _platform(record)
    version = ""
    try:
        version = library_version(LIBRARIES.get(record.backend, record.backend))
    except MissingLibraryError as error:
        yield _missing_library(record, str(error))
    if version:
        yield from _version(record, version)
    if needs_gpu(record):
        yield from _gpu(record)
        if record.backend == "onnxruntime" and version:
            yield from _cuda_provider()
    elif record.backend == "onnxruntime":
        yield from _processor(record)


def remarks(record: Record) -> Iterator[str]:
    """Yield what keeps the engine from nothing and is worth knowing."""
    gpu, built_on = first_gpu(), record.built_with
    same = gpu.get("compute_capability") == built_on.get("compute_capability")
    if record.backend == "tensorrt" and same and gpu and gpu["gpu"] != built_on.get("gpu"):
        yield f"built on {built_on.get('gpu')}, and this is {gpu['gpu']}: it may be slower than one built here"
    if (
        needs_gpu(record)
        and len(kinds_of_gpu()) > 1
        and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    ):
        kinds = " and ".join(kinds_of_gpu())
        yield f"{kinds} are visible, and CUDA may take another one first: set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
    if record.portability.get("version_compatible"):
        yield "set runtime.engine_host_code_allowed = True before deserializing: it carries its own runtime"
    if record.portability.get("exclude_lean_runtime"):
        yield f"its lean runtime was left out: load that of {TITLES['tensorrt']} {built_version(record)} first"


def needs_gpu(record: Record) -> bool:
    """Tell whether an engine runs on a GPU."""
    return record.backend != "onnxruntime" or record.map("settings").get("provider") == "cuda"


def built_version(record: Record) -> str:
    """Return the version of the library that built it."""
    module = LIBRARIES.get(record.backend, record.backend)
    return str(record.built_with.get(module) or record.map("toolchain").get(module) or "")


def library_is_here(backend: str) -> bool:
    """Tell whether the library of a backend can be loaded."""
    try:
        return bool(library_version(LIBRARIES.get(backend, backend)))
    except MissingLibraryError:
        return False


def _missing_library(record: Record, why: str) -> Reason:
    title = TITLES.get(record.backend, record.backend)
    problem = f"{title} is not installed here" if not why else f"{title} cannot be used here: {why}"
    wanted = f"=={built_version(record)}" if built_version(record) else ""
    return Reason(
        "library", problem, f"pip install '{_PACKAGES.get(record.backend, record.backend)}{wanted}'"
    )


def _version(record: Record, here: str) -> Iterator[Reason]:
    built, found = numbers_of(built_version(record)), numbers_of(here)
    if not built or not found:
        return
    title, flexible = (
        TITLES.get(record.backend, record.backend),
        bool(record.portability.get("version_compatible")),
    )
    shown = f"it was built with {title} {built_version(record)}, and {here} is installed"
    install = (
        f"pip install '{_PACKAGES.get(record.backend, record.backend)}=={built_version(record)}'"
    )
    if record.backend == "onnxruntime":
        if found[:2] < built[:2]:
            problem = f"{shown}: an older one may lack operators that the newer one put into it"
            yield Reason("version", problem, f"{install} or newer")
    elif record.backend == "tensorrt" and flexible:
        if not _runs_later(built, found):
            problem = f"{shown}: it is version compatible, which reaches to later versions only, {_reach(built)}"
            yield Reason(
                "version", problem, f"{install}, or build it with the version that is installed"
            )
    elif not _same(built, found):
        hint = (
            ""
            if record.backend == "tensorrt_rtx"
            else ", or set version_compatible: true for later versions"
        )
        problem = f"{shown}: such an engine runs with exactly its own version"
        yield Reason(
            "version", problem, f"{install}, or build it with the version that is installed{hint}"
        )


def _same(built: tuple[int, ...], found: tuple[int, ...]) -> bool:
    shared = max(_RELEASE, min(len(built), len(found)))
    return built[:shared] == found[:shared]


def _runs_later(built: tuple[int, ...], found: tuple[int, ...]) -> bool:
    if built[0] == found[0]:
        return found >= built[: len(found)]
    return (built[0], found[0]) in _NEWER_MAJORS


def _reach(built: tuple[int, ...]) -> str:
    majors = [
        str(built[0]),
        *(str(newer) for older, newer in sorted(_NEWER_MAJORS) if older == built[0]),
    ]
    return f"those of TensorRT {' and '.join(majors)}"


def _gpu(record: Record) -> Iterator[Reason]:
    gpu, wanted = first_gpu(), _capabilities(record)
    where = (
        f"run it on a GPU of compute capability {wanted}"
        if wanted
        else "run it on a machine with an NVIDIA GPU"
    )
    if not gpu:
        yield Reason("gpu", f"it needs an NVIDIA GPU, and here {why_no_gpu()}", where)
        return
    yield from _driver(record, gpu)
    here = gpu["compute_capability"]
    if record.backend == "tensorrt" and not _fits(record, here):
        built_on = record.built_with.get("gpu") or "another GPU"
        problem = f"it was built on {built_on} for compute capability {wanted}, and {gpu['gpu']} here has {here}"
        remedy = f"build it on a GPU like this one, or with hardware_compatibility: {_wider(record, here)}"
        yield Reason("compute capability", problem, remedy)
    elif record.backend == "tensorrt_rtx" and here not in _rtx_capabilities(record):
        problem = f"it was built for compute capability {wanted}, and {gpu['gpu']} here has {here}"
        remedy = f"add '{here}' to its compute_capabilities and build it again"
        yield Reason("compute capability", problem, remedy)


def _fits(record: Record, here: str) -> bool:
    built = str(record.built_with.get("compute_capability") or "")
    if record.portability.get("hardware_compatibility") == "ampere_plus":
        return numbers_of(here) >= _AMPERE
    return not built or built == here


def _wider(record: Record, here: str) -> str:
    ours = [numbers_of(here), numbers_of(str(record.built_with.get("compute_capability") or ""))]
    if all(capability >= _AMPERE for capability in ours):
        return "ampere_plus, which is for 8.0 and all later ones"
    return "ampere_plus on GPUs from 8.0 on (this combination has an older one)"


def _capabilities(record: Record) -> str:
    if record.backend == "tensorrt_rtx":
        return _either(_rtx_capabilities(record))
    if record.portability.get("hardware_compatibility") == "ampere_plus":
        return "8.0 or later"
    return str(record.built_with.get("compute_capability") or "")


def _rtx_capabilities(record: Record) -> list[str]:
    own = str(record.built_with.get("compute_capability") or "")
    named = (
        record.portability.get("compute_capabilities")
        or record.map("settings").get("compute_capabilities")
        or []
    )
    return [own if name == "current" else str(name) for name in named]


def _driver(record: Record, gpu: Mapping[str, Any]) -> Iterator[Reason]:
    if record.backend not in ("tensorrt", "tensorrt_rtx"):
        return
    module, title = LIBRARIES[record.backend], TITLES[record.backend]
    needed = cuda_of_library(module) or str(record.built_with.get("cuda_runtime") or "")
    there = numbers_of(str(gpu.get("cuda") or ""))
    if needed.isdigit() and there and there[0] < int(needed):
        driver = (
            f"the NVIDIA driver {gpu.get('driver')} is too old: it runs CUDA up to {gpu['cuda']}"
        )
        oldest = _DRIVERS.get(int(needed), "")
        remedy = (
            f"install a driver of version {oldest} or newer" if oldest else "install a newer driver"
        )
        yield Reason("driver", f"{driver}, and {title} here is made for CUDA {needed}", remedy)


def _platform(record: Record) -> Iterator[Reason]:
    built, here = str(record.built_with.get("platform") or ""), platform_name()
    if record.backend == "tensorrt" and built and built != here:
        yield Reason(
            "platform", f"it was built on {built}, and this is {here}", "build it on such a machine"
        )
    elif built and built.rpartition(" ")[2] != here.rpartition(" ")[2]:
        yield Reason(
            "platform",
            f"it was built on {built}, and this is {here}",
            "build it for this processor family",
        )


def _processor(record: Record) -> Iterator[Reason]:
    if record.map("settings").get("graph_optimization_level", "all") != "all":
        return
    here = engine_instructions()
    lacking = [
        name
        for name in record.built_with.get("instructions") or ()
        if name in _LAYOUTS and name not in here
    ]
    if lacking:
        problem = (
            f"its weights are laid out for {', '.join(lacking)}, which this processor does not have"
        )
        yield Reason(
            "processor", problem, "build it here, or with graph_optimization_level: extended"
        )


def _cuda_provider() -> Iterator[Reason]:
    from importlib import import_module

    if "CUDAExecutionProvider" not in import_module("onnxruntime").get_available_providers():
        problem = "it needs ONNX Runtime's CUDA provider, which the installed onnxruntime lacks"
        yield Reason("library", problem, "pip uninstall onnxruntime; pip install onnxruntime-gpu")


def _either(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
