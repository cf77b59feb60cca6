"""Facts about what runs the stages: library versions, Python, CPU and GPU. Nothing is imported to find them."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.system import compilers

if TYPE_CHECKING:
    from buildsys.system.interpreters.identity import Memo
    from buildsys.system.interpreters.toolchain import Toolchain

ABSENT = "absent"
UNUSABLE = "unusable"
NONE = "none"
GPU_FACTS = ("name", "compute_capability", "driver", "cuda_driver")
_OTHER_BUILDS = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino")
}  # the same module under other names
# the same again, by the CUDA that it is made for, where a package of the plain name may stand above one of these
_CUDA_BUILDS = {
    "tensorrt": (
        "tensorrt-cu11",
        "tensorrt-cu12",
        "tensorrt-cu13",
        "tensorrt-bindings",
        "nvidia-tensorrt",
    ),
    "tensorrt-rtx": ("tensorrt-rtx-cu12", "tensorrt-rtx-cu13"),
}
_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # dxg: WSL
# environment variables that change what a library computes, by what looks at them
ENVIRONMENT = {
    "torch": re.compile(
        r"(TORCH|PYTORCH|ATEN|ONEDNN|DNNL|ONNXSCRIPT|TORCHDYNAMO|TORCHLIB)_.+|MKL_(CBWR|ENABLE_INSTRUCTIONS)"
    ),
    "onnxruntime": re.compile(r"ORT_.+"),
    "onnxsim": re.compile(r"ONNXSIM_.+"),
    "onnxslim": re.compile(r"ONNXSLIM_.+"),
    "gpu": re.compile(r"NVIDIA_TF32_OVERRIDE|CUBLAS_.+|CUBLASLT_.+|CUDNN_.+|TRT_.+|TENSORRT_.+"),
    "speed": re.compile(
        r"(OMP|GOMP|KMP|MKL|OPENBLAS|MALLOC|CUDA)_.+|LD_PRELOAD|GLIBC_TUNABLES|PYTHONOPTIMIZE|PYTHONMALLOC"
    ),
}
# these say where something lies or what is logged
_NO_RESULT = re.compile(
    r"(_HOME|_DIR|_PATH|_ROOT|_LOGS?|_LOG_.*|_CACHE.*|_STACKTRACES|_VERBOSE)$|^ORT_DISABLE_TELEMETRY$"
    r"|^CUDA_(VISIBLE_DEVICES|DEVICE_ORDER)$"  # what they choose is in the key: the GPU's facts
)
_INSTRUCTION_SETS = re.compile(
    r"\b(sse4_2|avx|avx2|fma|f16c|avx_vnni|avx512\w*|amx_\w+|asimd\w*|sve\w*|i8mm|bf16|fphp)\b"
)


def tool_versions(
    names: Iterable[str], toolchain: Toolchain | None = None, memo: Memo | None = None
) -> dict[str, str]:
    """Return the installed version of each distribution, ``absent`` for one that is not installed.

    ``python`` is the interpreter, without the number of its bug-fix release; ``cc`` and ``c++`` are compilers.
    Of a ``toolchain`` it is what that interpreter has; ``memo`` remembers what had to be asked of it.
    """
    if toolchain is not None:
        return _versions_elsewhere(names, toolchain, memo)
    return {name: _version(name) for name in names}


def _versions_elsewhere(
    names: Iterable[str], toolchain: Toolchain, memo: Memo | None
) -> dict[str, str]:
    from buildsys.system.interpreters.identity import inquire  # only for those who have a toolchain

    found = inquire(toolchain, memo)
    identity = found.identity
    if identity is None:
        return {
            name: (UNUSABLE if name == "python" and toolchain.python.exists() else ABSENT)
            for name in names
        }
    return {
        name: identity.release
        if name == "python"
        else _version_elsewhere(name, identity.path, toolchain, memo)
        for name in names
    }


def _version_elsewhere(
    name: str, path: tuple[str, ...], toolchain: Toolchain, memo: Memo | None
) -> str:
    from buildsys.system.interpreters.module_version import told_version, written_version

    module = name.replace("-", "_")
    return (
        _listed_version(name, _installed(path))
        or written_version(module, path)
        or told_version(module, path, toolchain, memo)
        or ABSENT
    )


def _version(name: str) -> str:
    if name in compilers.LANGUAGES:
        return compilers.compiler_identity(name)
    return python_version() if name == "python" else distribution_version(name)


@cache
def distribution_version(name: str) -> str:
    """Return the version of a distribution (``-``, ``_`` and ``.`` in names are alike), or ``absent``."""
    listed = _listed_version(name, installed_versions())
    if listed:
        return listed
    from importlib import metadata  # slow, and only this finds eggs, zip files and what finders add

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ABSENT


def module_path(toolchain: Toolchain, memo: Memo | None = None) -> tuple[str, ...]:
    """Return where a toolchain's interpreter looks for modules; nothing where it cannot be used."""
    from buildsys.system.interpreters.identity import inquire

    identity = inquire(toolchain, memo).identity
    return () if identity is None else identity.path


def _listed_version(name: str, installed: Mapping[str, str]) -> str:
    """Return the version of a distribution, or of those that bring the same module; empty where there is none."""
    plain = normalized(name)
    found = {
        build: installed[build]
        for build in (plain, *_OTHER_BUILDS.get(plain, ()))
        if build in installed
    }
    for build in _CUDA_BUILDS.get(plain, ()):
        if build in installed and installed[build] not in found.values():
            found[build] = installed[build]
    return " + ".join(
        version if build == plain else f"{version} ({build})" for build, version in found.items()
    )


def python_version() -> str:
    """Return the interpreter's implementation and its release, in which language and bytecode stay the same."""
    return f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])}"


def installed_versions(path: tuple[str, ...] | None = None) -> Mapping[str, str]:
    """Return normalized name -> version of the distributions on a module path, our own unless given."""
    return _installed(tuple(sys.path) if path is None else path)


def environment_facts(families: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environment`` that belong to one of ``families`` (``ENVIRONMENT``)."""
    patterns = [ENVIRONMENT[family] for family in families]
    return {
        name: value
        for name, value in environment.items()
        if not _NO_RESULT.search(name) and any(pattern.fullmatch(name) for pattern in patterns)
    }


@cache
def cpu_facts() -> Mapping[str, str]:
    """Return the CPU's model and the vector instruction sets that engines use."""
    described = _first_processor()
    model = (
        described.get("model name")
        or described.get("CPU part")
        or platform.processor()
        or platform.machine()
    )
    flags = described.get("flags") or described.get("Features") or ""
    return {
        "cpu.model": f"{model} ({platform.machine()})",
        "cpu.instructions": " ".join(sorted(set(_INSTRUCTION_SETS.findall(flags)))),
    }


def core_facts() -> Mapping[str, str]:
    """Return the number of processors that this process may use."""
    return {"cpu.cores": str(_usable_cores())}


@cache
def gpu_facts() -> Mapping[str, str]:
    """Return name, compute capability, driver and CUDA driver version of the GPU in use, ``none`` without one.

    CUDA_VISIBLE_DEVICES is honoured. Where several kinds of GPU are visible, all of them are named; where it
    cannot be told which kind CUDA takes first (it sorts by speed, the driver by place), all that are there, with
    the variables that decide.
    """
    nothing = {f"gpu.{fact}": NONE for fact in GPU_FACTS}
    if not any(os.path.exists(path) for path in _DRIVER_FILES):  # noqa: PTH110 - before ctypes is worth its import
        return nothing
    from buildsys.system.gpus import GpuError, read_gpus

    visible, order = (
        os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    )
    try:
        gpus, every = read_gpus(visible), read_gpus(None)
    except GpuError:
        return nothing
    if not gpus:
        return nothing
    chosen = {}
    if len({gpu["name"] for gpu in every}) > 1 and order != "PCI_BUS_ID":
        gpus, chosen = (
            every,
            {"gpu.chosen_by": f"CUDA_VISIBLE_DEVICES={visible} CUDA_DEVICE_ORDER={order}"},
        )
    return {
        **{
            f"gpu.{fact}": " + ".join(dict.fromkeys(gpu[fact] for gpu in gpus))
            for fact in GPU_FACTS
        },
        **chosen,
    }


def gpu_uuids(variables: Iterable[tuple[str, str]] = ()) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that CUDA takes first, here and with further environment variables.

    Where it cannot be told which that is, all that it may be; none without a driver.
    """
    if not any(os.path.exists(path) for path in _DRIVER_FILES):  # noqa: PTH110 - before ctypes is worth its import
        return ()
    places = ({**os.environ, **changes} for changes in ({}, dict(variables)))
    chosen = (
        _first_gpus(place.get("CUDA_VISIBLE_DEVICES"), place.get("CUDA_DEVICE_ORDER"))
        for place in places
    )
    return tuple(dict.fromkeys(uuid for uuids in chosen for uuid in uuids))


@cache
def _first_gpus(visible: str | None, order: str | None) -> tuple[str, ...]:
    from buildsys.system.gpus import GpuError, read_uuids

    try:
        gpus, every = read_uuids(visible), read_uuids(None)
    except GpuError:
        return ()
    if len({name for _, name in every}) > 1 and order != "PCI_BUS_ID":  # then CUDA sorts by speed
        return tuple(uuid for uuid, _ in every)
    return tuple(uuid for uuid, _ in gpus[:1])


def device_facts(devices: Iterable[str]) -> dict[str, str]:
    """Return the facts of the devices that an action names: ``cpu``, ``cores``, ``gpu``."""
    known: Mapping[str, Callable[[], Mapping[str, str]]] = {
        "cpu": cpu_facts,
        "cores": core_facts,
        "gpu": gpu_facts,
    }
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
                versions.setdefault(normalized(name), version)
    return versions


def normalized(name: str) -> str:
    """Return a distribution's name in the one spelling that all its spellings share."""
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
