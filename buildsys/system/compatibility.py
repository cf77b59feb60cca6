"""Rules for running any engine: library, GPU, platform, plugins.

Rules of single backends are in their descriptions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.system.backend_registry import (
    Reason,
    Record,
    backend_names,
    describe_backend,
    find_package,
)
from buildsys.system.engine_environment import (
    MissingLibraryError,
    library_version,
    platform_name,
    version_numbers,
    visible_gpus,
)
from buildsys.system.engine_files import RECORD_NAME, is_file_name
from buildsys.system.files import sha256_of

_DIGITS = 16  # digits of a digest


def machine_reasons(record: Record) -> Iterator[Reason]:
    """Yield all reasons against running a recorded engine on this machine."""
    if find_package(record.backend) is None:  # only registered names are imported
        problem = f"{RECORD_NAME} names an unknown backend: {record.backend!r}"
        hint = f"known backends: {', '.join(backend_names())}; others need their package installed"
        yield Reason("record", problem, hint)
        return
    description = describe_backend(record.backend)
    if description.problem:
        yield Reason("library", description.problem, description.install)
        return
    built, here = str(record.map("built_with").get("platform") or ""), platform_name()
    problem = f"it was built on {built}, but this is {here}"
    others = built and built.rpartition(" ")[2] != here.rpartition(" ")[2]
    if description.same_platform and built and built != here:
        yield Reason("platform", problem, "build it on such a machine")
    elif others and not description.any_processor:
        yield Reason("platform", problem, "build it for this processor family")
    if elsewhere := description.system_problem():
        yield Reason("platform", elsewhere.problem, elsewhere.hint)
        return
    version = ""
    try:
        version = library_version(description.module)
    except MissingLibraryError as error:
        cause = f"cannot be used here: {error}" if str(error) else "is not installed here"
        yield Reason("library", f"{description.title} {cause}", install_command(record))
    yield from description.reasons(record, version)


def engine_notes(record: Record) -> Iterator[str]:
    """Yield facts worth knowing before the engine runs here."""
    if find_package(record.backend) is None:
        return
    models = list(dict.fromkeys(visible["gpu"] for visible in visible_gpus()))
    yield from describe_backend(record.backend).notes(record)
    pci_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if needs_gpu(record) and len(models) > 1 and not pci_order:
        yield (
            f"{' and '.join(models)} are visible, and CUDA may select another one first:"
            " set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
        )
    plugins = _unregistered_plugins(record)
    if plugins:
        module = describe_backend(record.backend).module
        own = f"{module}.init_libnvinfer_plugins"
        names = (
            f"{plugin.get('name')} ({own if plugin.get('bundled') else plugin.get('file')})"
            for plugin in plugins
        )
        yield f"register before deserializing: {', '.join(names)}"


def needs_gpu(record: Record) -> bool:
    """Check whether an engine runs on a GPU."""
    return describe_backend(record.backend).runs_on_gpu(record.map("settings"))


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
        if plugin.get("bundled"):  # the library has it
            continue
        file = Path(str(plugin.get("file")))
        if file.name in record.files:  # it was checked with the other files in the folder
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
        elif plugin.get("file_sha256") not in (None, digest := sha256_of(plugin_file)):
            recorded = str(plugin["file_sha256"])[:_DIGITS]
            problem = (
                f"{named} is a different one: {plugin_file.name} has the SHA-256"
                f" {digest[:_DIGITS]}…, the recorded one is {recorded}…"
            )
            yield Reason("plugin", problem, "use the file that it was built with")


def _unregistered_plugins(record: Record) -> list[Mapping[str, Any]]:
    """List the plugins missing from the registry of the loaded library."""
    recorded = record.figures.get("plugins")
    if not recorded or find_package(record.backend) is None:
        return []
    entries = recorded if isinstance(recorded, list) else []
    plugins = [plugin for plugin in entries if isinstance(plugin, Mapping)]
    module: Any = sys.modules.get(describe_backend(record.backend).module)
    registry = module.get_plugin_registry() if hasattr(module, "get_plugin_registry") else None
    look_up = getattr(registry, "get_creator", None)
    look_up = look_up or getattr(registry, "get_plugin_creator", None)  # TensorRT 8.6
    if look_up is None:
        return plugins
    keys = ("name", "version", "namespace")
    return [plugin for plugin in plugins if look_up(*(plugin.get(key, "") for key in keys)) is None]
