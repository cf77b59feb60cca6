"""Rules for running an engine: library, version, GPU, driver, CPU, TensorRT plugins.

Source: TensorRT documentation, "Engine Compatibility" and "Support Matrix" (11.4); TensorRT-RTX
documentation, "Engine Compatibility" and "CPU-Only AOT and TensorRT-RTX Engines".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from buildsys.system.compatibility.engine_files import RECORD_NAME, Reason, Record, is_file_name
from buildsys.system.cpu import engine_instructions
from buildsys.system.engine_environment import (
    LIBRARIES,
    MissingLibraryError,
    cuda_of_library,
    library_version,
    platform_name,
    version_numbers,
    visible_gpus,
    why_no_gpu,
)
from buildsys.system.files import sha256_of

TITLES = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
_PACKAGES = {"onnxruntime": "onnxruntime", "tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}
# major versions of a build and of the only later runtimes that take its version-compatible engines
_LATER_MAJORS = {(8, 10), (10, 11)}
_DRIVERS = {11: "450.80", 12: "525.60", 13: "580.65"}  # the oldest for each CUDA, on Linux
_AMPERE = (8, 0)
_LAYOUTS = ("avx", "avx2", "avx512f")  # ONNX Runtime blocks the channels of weights by their width
_RELEASE = 3  # numbers of a version that identify an engine format
_SHOWN_DIGITS = 16  # of a digest


def machine_reasons(record: Record) -> Iterator[Reason]:
    """Yield all reasons against running a recorded engine on this machine."""
    if record.backend not in LIBRARIES:  # a record may come from anywhere: import nothing it names
        problem = f"{RECORD_NAME} names an unknown backend: {record.backend!r}"
        yield Reason("record", problem, f"known backends: {', '.join(LIBRARIES)}")
        return
    built, here = str(record.map("built_with").get("platform") or ""), platform_name()
    problem = f"it was built on {built}, but this is {here}"
    if record.backend == "tensorrt" and built and built != here:
        yield Reason("platform", problem, "build it on such a machine")
    elif built and built.rpartition(" ")[2] != here.rpartition(" ")[2]:
        yield Reason("platform", problem, "build it for this processor family")
    version = ""
    try:
        version = library_version(LIBRARIES[record.backend])
    except MissingLibraryError as error:
        title, install = TITLES[record.backend], _install_command(record)
        cause = f"cannot be used here: {error}" if str(error) else "is not installed here"
        yield Reason("library", f"{title} {cause}", install)
    if version:
        yield from _check_version(record, version)
    if needs_gpu(record):
        yield from _check_gpu(record)
        if record.backend == "onnxruntime" and version:
            providers = import_module("onnxruntime").get_available_providers()
            if "CUDAExecutionProvider" not in providers:
                problem = (
                    "it needs ONNX Runtime's CUDA provider, but the installed onnxruntime has none"
                )
                remedy = "pip uninstall onnxruntime; pip install onnxruntime-gpu"
                yield Reason("library", problem, remedy)
    elif record.backend == "onnxruntime":
        yield from _check_processor(record)


def engine_notes(record: Record) -> Iterator[str]:
    """Yield facts worth knowing before the engine runs here."""
    gpus, built_on = visible_gpus(), record.map("built_with")
    gpu = gpus[0] if gpus else {}
    models = list(dict.fromkeys(visible["gpu"] for visible in gpus))
    same = gpu.get("compute_capability") == built_on.get("compute_capability")
    if record.backend == "tensorrt" and same and gpu and gpu["gpu"] != built_on.get("gpu"):
        yield (
            f"built on {built_on.get('gpu')}, and this is {gpu['gpu']}:"
            " an engine built here may be faster"
        )
    pci_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if needs_gpu(record) and len(models) > 1 and not pci_order:
        yield (
            f"{' and '.join(models)} are visible, and CUDA may select another one first:"
            " set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
        )
    if record.map("portability").get("version_compatible"):
        yield (
            "set runtime.engine_host_code_allowed = True before deserializing:"
            " it contains its own runtime"
        )
    if record.map("portability").get("exclude_lean_runtime"):
        library = f"{TITLES['tensorrt']} {built_version(record)}"
        yield f"it does not contain its lean runtime: load that of {library} first"
    plugins = _unregistered_plugins(record)
    if plugins:
        names = (f"{plugin.get('name')} ({plugin.get('file')})" for plugin in plugins)
        yield f"register before deserializing: {', '.join(names)}"


def needs_gpu(record: Record) -> bool:
    """Return True if an engine runs on a GPU."""
    return record.backend != "onnxruntime" or record.map("settings").get("provider") == "cuda"


def built_version(record: Record) -> str:
    """Return the library version of an engine's build."""
    module = LIBRARIES.get(record.backend, record.backend)
    return str(record.map("built_with").get(module) or record.map("toolchain").get(module) or "")


def _install_command(record: Record) -> str:
    version = f"=={built_version(record)}" if built_version(record) else ""
    return f"pip install '{_PACKAGES[record.backend]}{version}'"


def _check_version(record: Record, here: str) -> Iterator[Reason]:
    built, found = version_numbers(built_version(record)), version_numbers(here)
    if not built or not found:
        return
    title, install = TITLES[record.backend], _install_command(record)
    problem = f"it was built with {title} {built_version(record)}, but {here} is installed"
    rebuild = f"{install}, or build it with the installed version"
    if record.backend == "onnxruntime":
        if found[:2] < built[:2]:
            problem += ": an older version may not support operators that the newer one added"
            yield Reason("version", problem, f"{install} or newer")
    elif record.backend == "tensorrt" and record.map("portability").get("version_compatible"):
        later_minor = built[0] == found[0] and found >= built[: len(found)]
        if not later_minor and (built[0], found[0]) not in _LATER_MAJORS:
            later = [str(newer) for older, newer in sorted(_LATER_MAJORS) if older == built[0]]
            majors = " and ".join([str(built[0]), *later])
            problem += (
                f": a version-compatible engine only runs with later versions of TensorRT {majors}"
            )
            yield Reason("version", problem, rebuild)
    else:
        shared = max(_RELEASE, min(len(built), len(found)))
        if built[:shared] != found[:shared]:
            problem += ": such an engine only runs with its own version"
            if record.backend == "tensorrt":
                rebuild += ", or set version_compatible: true for later versions"
            yield Reason("version", problem, rebuild)


def _check_gpu(record: Record) -> Iterator[Reason]:
    gpus, built_with = visible_gpus(), record.map("built_with")
    built = str(built_with.get("compute_capability") or "")
    is_rtx, supported = record.backend == "tensorrt_rtx", [built]
    later_too = record.map("portability").get("hardware_compatibility") == "ampere_plus"
    if is_rtx:
        supported = _rtx_capabilities(record)
    elif later_too:
        supported = ["8.0 or later"]
    *others, last = supported or [""]
    built_for = f"{', '.join(others)} or {last}" if others else last
    if not gpus:
        target = f"a GPU of compute capability {built_for}" if built_for else "an NVIDIA GPU"
        yield Reason("gpu", f"it needs an NVIDIA GPU, but {why_no_gpu()}", f"run it on {target}")
        return
    if record.backend == "onnxruntime":
        return
    gpu = gpus[0]
    yield from _check_driver(record, gpu)
    here = gpu["compute_capability"]
    if is_rtx:
        fits, where = here in supported, ""
        remedy = f"add '{here}' to its compute_capabilities and build it again"
    else:
        fits = version_numbers(here) >= _AMPERE if later_too else not built or built == here
        where = f"on {built_with.get('gpu') or 'another GPU'} "
        wider = "ampere_plus on GPUs from 8.0 on (one of these two is older)"
        if min(version_numbers(here), version_numbers(built)) >= _AMPERE:
            wider = "ampere_plus, which is for 8.0 and all later ones"
        remedy = f"build it on a GPU like this one, or with hardware_compatibility: {wider}"
    if not fits:
        problem = f"it was built {where}for compute capability {built_for}"
        problem = f"{problem}, but {gpu['gpu']} here has {here}"
        yield Reason("compute capability", problem, remedy)


def _rtx_capabilities(record: Record) -> list[str]:
    own = str(record.map("built_with").get("compute_capability") or "")
    for recorded in (record.map("portability"), record.map("settings")):
        names = recorded.get("compute_capabilities")
        if isinstance(names, list) and names:
            return [own if name == "current" else str(name) for name in names]
    return []


def _check_driver(record: Record, gpu: Mapping[str, Any]) -> Iterator[Reason]:
    module, title = LIBRARIES[record.backend], TITLES[record.backend]
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


def _check_processor(record: Record) -> Iterator[Reason]:
    if record.map("settings").get("graph_optimization_level", "all") != "all":
        return
    here, recorded = engine_instructions(), record.map("built_with").get("instructions")
    names = recorded if isinstance(recorded, list) else []
    missing = [name for name in names if name in _LAYOUTS and name not in here]
    if missing:
        problem = (
            f"its weights are laid out for {', '.join(missing)},"
            " which this processor does not support"
        )
        remedy = "build it here, or with graph_optimization_level: extended"
        yield Reason("processor", problem, remedy)


def plugin_reasons(record: Record, engine: Path, project: Path | None) -> Iterator[Reason]:
    """Yield a reason per plugin neither registered nor found."""
    for plugin in _unregistered_plugins(record):
        file = Path(str(plugin.get("file")))
        if file.name in record.files:  # it was checked with the other files in the folder
            continue
        places = [engine.with_name(file.name)] if is_file_name(file.name) else []
        if places and project is not None and not file.is_absolute() and ".." not in file.parts:
            places.append(project / file)
        found = next((place for place in places if place.is_file()), None)
        named = (
            f"the plugin {plugin.get('name')} {plugin.get('version')} for {plugin.get('operator')}"
        )
        if found is None:
            problem = (
                f"{named} is not registered in this process, and its file {plugin.get('file')}"
                " is not in the engine's folder"
            )
            remedy = "register its creator first, or copy the file into the folder"
            yield Reason("plugin", problem, remedy)
        elif plugin.get("file_sha256") not in (None, digest := sha256_of(found)):
            recorded = str(plugin["file_sha256"])[:_SHOWN_DIGITS]
            problem = (
                f"{named} is a different one: {found.name} has the SHA-256"
                f" {digest[:_SHOWN_DIGITS]}…, the recorded one is {recorded}…"
            )
            yield Reason("plugin", problem, "use the file that it was built with")


def _unregistered_plugins(record: Record) -> list[Mapping[str, Any]]:
    """Return the plugins missing from the registry of the loaded library."""
    found = record.figures.get("plugins")
    entries = found if isinstance(found, list) else []
    plugins = [plugin for plugin in entries if isinstance(plugin, Mapping)]
    module: Any = sys.modules.get(LIBRARIES.get(record.backend, ""))
    registry = module.get_plugin_registry() if hasattr(module, "get_plugin_registry") else None
    look_up = getattr(registry, "get_creator", None)
    look_up = look_up or getattr(registry, "get_plugin_creator", None)  # TensorRT 8.6
    if look_up is None:
        return plugins
    keys = ("name", "version", "namespace")
    return [each for each in plugins if look_up(*(each.get(key, "") for key in keys)) is None]
