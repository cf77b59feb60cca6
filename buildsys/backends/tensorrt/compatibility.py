"""Rules for running engines of TensorRT and TensorRT-RTX, and their files.

Source: TensorRT documentation, "Engine Compatibility" and "Support Matrix" (11.4); TensorRT-RTX
documentation, "Engine Compatibility" and "CPU-Only AOT and TensorRT-RTX Engines". The header of
TensorRT-RTX engines was found by inspection: ``vtrt``, at byte 16 the size of the file in 8 bytes,
at byte 24 the version in 4. A TensorRT engine (``ftrt``) with its file's size in that place is
assumed to have its version there, too.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from buildsys.system.backend_registry import Header, Reason, Record, describe_backend
from buildsys.system.compatibility import built_version, install_command
from buildsys.system.engine_environment import (
    cuda_of_library,
    version_numbers,
    visible_gpus,
    why_no_gpu,
)

if TYPE_CHECKING:
    from buildsys.system.files import Content

# major versions of a build and of the only later runtimes that take its version-compatible engines
_LATER_MAJORS = {(8, 10), (10, 11)}
_DRIVERS = {11: "450.80", 12: "525.60", 13: "580.65"}  # the oldest for each CUDA, on Linux
_AMPERE = (8, 0)
_RELEASE = 3  # numbers of a version that identify an engine format
_MAGIC = {"tensorrt": (b"ftrt", b"ptrt"), "tensorrt_rtx": (b"vtrt",)}
_SIZE_AT, _VERSION_AT, _HEADER_BYTES = 16, 24, 28


def read_header(content: Content, backend: str) -> Header | None:
    """Read the facts in an engine file of a backend."""
    head, size = content[:_HEADER_BYTES], len(content)
    if head[:4] not in _MAGIC[backend]:
        return None
    if len(head) < _HEADER_BYTES:
        return Header(backend, truncated=True)
    whole = struct.unpack_from("<Q", head, _SIZE_AT)[0]
    version = ".".join(map(str, head[_VERSION_AT:_HEADER_BYTES]))
    if backend == "tensorrt_rtx":
        return Header(backend, version, whole, truncated=size < whole)
    return Header(backend, version, whole) if whole == size else Header(backend)


def reasons(record: Record, here: str) -> Iterator[Reason]:
    """Yield reasons by the version ``here`` ("": not installed), GPU and driver."""
    yield from _check_version(record, here)
    yield from _check_gpu(record)


def notes(record: Record) -> Iterator[str]:
    """Yield facts worth knowing before an engine runs here."""
    gpu, built_on = next(iter(visible_gpus()), {}), record.map("built_with")
    same = gpu.get("compute_capability") == built_on.get("compute_capability")
    if same and gpu and gpu["gpu"] != built_on.get("gpu"):
        yield (
            f"built on {built_on.get('gpu')}, and this is {gpu['gpu']}:"
            " an engine built here may be faster"
        )
    if record.map("portability").get("version_compatible"):
        yield (
            "set runtime.engine_host_code_allowed = True before deserializing:"
            " it contains its own runtime"
        )
    if record.map("portability").get("exclude_lean_runtime"):
        library = f"{describe_backend(record.backend).title} {built_version(record)}"
        yield f"it does not contain its lean runtime: load that of {library} first"


def _version_reason(record: Record, here: str) -> Reason | None:
    """Return the reason against another version; None for the same one, or if unknown."""
    built, installed = version_numbers(built_version(record)), version_numbers(here)
    shared = max(_RELEASE, min(len(built), len(installed)))
    if not built or not installed or built[:shared] == installed[:shared]:
        return None
    return _other_version(record, here, "such an engine only runs with its own version")


def rtx_reasons(record: Record, here: str) -> Iterator[Reason]:
    """Yield the reasons of TensorRT-RTX."""
    if reason := _version_reason(record, here):
        yield reason
    supported = _capabilities(record)
    *others, last = supported or [""]
    built_for = f"{', '.join(others)} or {last}" if others else last
    gpu = yield from _find_gpu(record, built_for)
    if gpu is not None and gpu["compute_capability"] not in supported:
        here = gpu["compute_capability"]
        problem = f"it was built for compute capability {built_for}"
        problem = f"{problem}, but {gpu['gpu']} here has {here}"
        remedy = f"add '{here}' to its compute_capabilities and build it again"
        yield Reason("compute capability", problem, remedy)


def _capabilities(record: Record) -> list[str]:
    own = str(record.map("built_with").get("compute_capability") or "")
    for recorded in (record.map("portability"), record.map("settings")):
        names = recorded.get("compute_capabilities")
        if isinstance(names, list) and names:
            return [own if name == "current" else str(name) for name in names]
    return []


def _check_version(record: Record, here: str) -> Iterator[Reason]:
    built, installed = version_numbers(built_version(record)), version_numbers(here)
    if not record.map("portability").get("version_compatible"):
        if reason := _version_reason(record, here):
            remedy = f"{reason.remedy}, or set version_compatible: true for later versions"
            yield replace(reason, remedy=remedy)
    elif built and installed:
        later_minor = built[0] == installed[0] and installed >= built[: len(installed)]
        if not later_minor and (built[0], installed[0]) not in _LATER_MAJORS:
            later = [str(newer) for older, newer in sorted(_LATER_MAJORS) if older == built[0]]
            majors = " and ".join([str(built[0]), *later])
            rule = f"a version-compatible engine only runs with later versions of TensorRT {majors}"
            yield _other_version(record, here, rule)


def _other_version(record: Record, here: str, rule: str) -> Reason:
    title = describe_backend(record.backend).title
    problem = f"it was built with {title} {built_version(record)}, but {here} is installed: {rule}"
    remedy = f"{install_command(record)}, or build it with the installed version"
    return Reason("version", problem, remedy)


def _check_gpu(record: Record) -> Iterator[Reason]:
    built_with = record.map("built_with")
    built = str(built_with.get("compute_capability") or "")
    later_too = record.map("portability").get("hardware_compatibility") == "ampere_plus"
    built_for = "8.0 or later" if later_too else built
    gpu = yield from _find_gpu(record, built_for)
    if gpu is None:
        return
    here = gpu["compute_capability"]
    fits = version_numbers(here) >= _AMPERE if later_too else not built or built == here
    if not fits:
        wider = "ampere_plus on GPUs from 8.0 on (one of these two is older)"
        if min(version_numbers(here), version_numbers(built)) >= _AMPERE:
            wider = "ampere_plus, which is for 8.0 and all later ones"
        where = built_with.get("gpu") or "another GPU"
        problem = f"it was built on {where} for compute capability {built_for}"
        problem = f"{problem}, but {gpu['gpu']} here has {here}"
        remedy = f"build it on a GPU like this one, or with hardware_compatibility: {wider}"
        yield Reason("compute capability", problem, remedy)


def _find_gpu(record: Record, built_for: str) -> Generator[Reason, None, dict[str, str] | None]:
    """Find the GPU here; yield the reasons of its absence or its driver."""
    gpus = visible_gpus()
    if not gpus:
        target = f"a GPU of compute capability {built_for}" if built_for else "an NVIDIA GPU"
        yield Reason("gpu", f"it needs an NVIDIA GPU, but {why_no_gpu()}", f"run it on {target}")
        return None
    yield from _check_driver(record, gpus[0])
    return gpus[0]


def _check_driver(record: Record, gpu: Mapping[str, Any]) -> Iterator[Reason]:
    description = describe_backend(record.backend)
    module, title = description.module, description.title
    needed = cuda_of_library(module) or str(record.map("built_with").get("cuda_runtime") or "")
    supported = version_numbers(str(gpu.get("cuda") or ""))
    if needed.isdigit() and supported and supported[0] < int(needed):
        problem = (
            f"the NVIDIA driver {gpu.get('driver')} is too old: it supports CUDA up to"
            f" {gpu['cuda']}, but {title} here needs CUDA {needed}"
        )
        oldest = _DRIVERS.get(int(needed), "")
        newer = f"a driver of version {oldest} or newer" if oldest else "a newer driver"
        yield Reason("driver", problem, f"install {newer}")
