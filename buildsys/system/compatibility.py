"""What an engine was built with, and the rules for running it: library, GPU, platform, plugins.

The stage that builds an engine records its environment; a check compares it with the machine it
runs on. Rules of single backends are in their descriptions. Standard library only.
"""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from buildsys.errors import Unavailable
from buildsys.system.backend_registry import (
    NOT_INSTALLED,
    Machine,
    Reason,
    Record,
    backend_names,
    describe_backend,
    find_package,
)
from buildsys.system.cpu import cpu_model, engine_instructions
from buildsys.system.devices import visible_gpus, why_no_gpu
from buildsys.system.engine_files import RECORD_NAME, is_file_name
from buildsys.system.files import sha256_of

# tensorrt_cu12, tensorrt_rtx_cu13_libs
_CUDA_IN_NAME = re.compile(r"(?:^|[-_])cu(\d{2})(?:[-_]|$)")
_GPU_FACTS = {
    "gpu": "name", "compute_capability": "compute_capability", "driver": "driver",
    "cuda": "cuda_driver",
}  # fmt: skip


def built_with(backend: str, device: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the environment of an engine built now; loads the backend's library.

    ``device`` is the one the backend uses: with several GPUs, CUDA's first may not be NVML's first.
    """
    module = describe_backend(backend).module
    facts: dict[str, Any] = {module: library_version(module), "platform": platform_name()}
    if device.get("kind") != "gpu":
        return {**facts, "cpu": cpu_model(), "instructions": engine_instructions()}
    if runtime := cuda_of_library(module):
        facts["cuda_runtime"] = runtime
    for gpu in visible_gpus()[:1]:
        facts |= {name: gpu[fact] for name, fact in _GPU_FACTS.items()}
    used = {"gpu": device.get("name"), "compute_capability": device.get("compute_capability")}
    return facts | {name: str(fact) for name, fact in used.items() if fact}


def library_version(module: str) -> str:
    """Load an engine library and return its version.

    Raises: Unavailable: it is not installed or cannot be loaded, as a predicate.
    """
    try:
        loaded = sys.modules.get(module) or import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # a shared library is missing or unfit
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            raise Unavailable(NOT_INSTALLED) from error
        cause = " ".join(str(error).split())
        raise Unavailable(f"cannot be used here: it cannot be loaded: {cause}") from error
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


def platform_name() -> str:
    """Return operating system and processor family: ``Linux x86_64``."""
    return f"{platform.system()} {platform.machine()}"


def version_numbers(version: str) -> tuple[int, ...]:
    """Parse the numbers in a version, e.g. (8, 6, 1, 6), or ()."""
    match = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


class _ThisMachine(Machine):
    """The machine of this process, whose libraries are loaded when a rule asks for them."""

    def why_no_gpu(self) -> str:
        return why_no_gpu()

    def library_version(self, module: str) -> str:
        return library_version(module)

    def cuda_of_library(self, module: str) -> str:
        return cuda_of_library(module)

    def onnxruntime_providers(self) -> tuple[str, ...]:
        return tuple(import_module("onnxruntime").get_available_providers())

    def package_version(self, distribution: str) -> str:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return ""


def this_machine() -> Machine:
    """Describe this machine."""
    return _ThisMachine(
        platform=platform_name(),
        cpu=cpu_model(),
        instructions=tuple(engine_instructions()),
        macos=platform.mac_ver()[0],
        gpus=visible_gpus(),
    )


def machine_reasons(record: Record, machine: Machine | None = None) -> Iterator[Reason]:
    """Yield all reasons against running a recorded engine on a machine, by default this one."""
    machine = machine or this_machine()
    if find_package(record.backend) is None:  # only registered names are imported
        problem = f"{RECORD_NAME} names an unknown backend: {record.backend!r}"
        hint = f"known backends: {', '.join(backend_names())}; others need their package installed"
        yield Reason("record", problem, hint)
        return
    description = describe_backend(record.backend)
    if description.problem:
        yield Reason("library", description.problem, description.install)
        return
    built, here = str(record.map("built_with").get("platform") or ""), machine.platform
    is_other_family = built.rpartition(" ")[2] != here.rpartition(" ")[2]
    if built and (
        (description.same_platform and built != here)
        or (is_other_family and not description.any_processor)
    ):
        problem = f"it was built on {built}, but this is {here}"
        yield Reason("platform", problem, "build it on such a machine")
    if elsewhere := description.system_problem(machine.system):
        yield Reason("platform", elsewhere.problem, elsewhere.hint)
        return
    version = ""
    try:
        version = machine.library_version(description.module)
    except Unavailable as error:
        problem = f"{description.title} {error.problem}"
        yield Reason("library", problem, install_command(record))
    yield from description.reasons(record, version, machine)


def engine_notes(record: Record) -> Iterator[str]:
    """Yield facts worth knowing before the engine runs here."""
    if find_package(record.backend) is None:
        return
    description = describe_backend(record.backend)
    yield from description.notes(record)
    names = list(dict.fromkeys(gpu["name"] for gpu in visible_gpus()))
    pci_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if len(names) > 1 and not pci_order and description.runs_on_gpu(record.map("settings")):
        yield (
            f"{' and '.join(names)} are visible, and CUDA may select another one first:"
            " set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
        )
    if plugins := _unregistered_plugins(record):
        own = f"{description.module}.init_libnvinfer_plugins"
        places = (
            f"{plugin.get('name')} ({own if plugin.get('bundled') else plugin.get('file')})"
            for plugin in plugins
        )
        yield f"register before deserializing: {', '.join(places)}"


def built_version(record: Record) -> str:
    """Look up the library version of an engine's build."""
    module = record.backend
    if find_package(module) is not None:
        module = describe_backend(module).module
    return str(record.map("built_with").get(module) or record.map("toolchain").get(module) or "")


def install_command(record: Record) -> str:
    """Return the command that installs the library version of an engine."""
    version = f"=={built_version(record)}" if built_version(record) else ""
    return f"pip install '{describe_backend(record.backend).packages.split()[0]}{version}'"


def older_library(record: Record, here: str, risk: str) -> Iterator[Reason]:
    """Yield the reason of a library ``here`` ("": not installed) that is older than the build's."""
    built, installed = version_numbers(built_version(record)), version_numbers(here)
    if built and installed and installed[:2] < built[:2]:
        library = f"{describe_backend(record.backend).title} {built_version(record)}"
        problem = f"it was built with {library}, but {here} is installed: {risk}"
        yield Reason("version", problem, f"{install_command(record)} or newer")


def plugin_reasons(record: Record, engine: Path, project: Path | None) -> Iterator[Reason]:
    """Yield a reason per plugin neither registered nor found."""
    for plugin in _unregistered_plugins(record):
        file = Path(str(plugin.get("file")))
        # the library has bundled ones; files of the engine's folder were checked with it
        if plugin.get("bundled") or file.name in record.files:
            continue
        places = [engine.with_name(file.name)] if is_file_name(file.name) else []
        if places and project is not None and not file.is_absolute() and ".." not in file.parts:
            places.append(project / file)
        plugin_file = next((place for place in places if place.is_file()), None)
        named = (
            f"the plugin {plugin.get('name')} {plugin.get('version')} for {plugin.get('operator')}"
        )
        if plugin_file is None:
            problem = (
                f"{named} is not registered in this process, and its file {plugin.get('file')}"
                " is not in the engine's folder"
            )
            remedy = "register its creator first, or copy the file into the folder"
            yield Reason("plugin", problem, remedy)
        elif plugin.get("file_sha256") not in (None, sha256_of(plugin_file)):
            problem = f"{named} is a different one: {plugin_file.name} has another SHA-256"
            yield Reason("plugin", problem, "use the file that it was built with")


def _unregistered_plugins(record: Record) -> list[Mapping[str, Any]]:
    """List the plugins missing from the registry of the loaded library."""
    recorded = record.figures.get("plugins")
    if not isinstance(recorded, list) or find_package(record.backend) is None:
        return []
    plugins = [plugin for plugin in recorded if isinstance(plugin, Mapping)]
    module: Any = sys.modules.get(describe_backend(record.backend).module)
    registry = module.get_plugin_registry() if hasattr(module, "get_plugin_registry") else None
    look_up = getattr(registry, "get_creator", None)
    look_up = look_up or getattr(registry, "get_plugin_creator", None)  # TensorRT 8.6
    if look_up is None:
        return plugins
    keys = ("name", "version", "namespace")
    return [plugin for plugin in plugins if look_up(*(plugin.get(key, "") for key in keys)) is None]
