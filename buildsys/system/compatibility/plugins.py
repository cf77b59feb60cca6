"""The TensorRT plugins of an engine: registered, or in files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.system.compatibility.engine_record import Record
from buildsys.system.compatibility.result import Reason
from buildsys.system.engine_environment import LIBRARIES
from buildsys.system.files import sha256_of

_SHOWN_DIGITS = 16


def plugin_reasons(record: Record, engine: Path, project: Path | None) -> Iterator[Reason]:
    """Yield a reason per plugin neither registered nor found."""
    for plugin in _needed_plugins(record):
        file = Path(str(plugin.get("file")))
        # a shared library in the engine's folder was checked with its other files
        if _is_registered(record, plugin) or file.name in record.files:
            continue
        places = [engine.with_name(file.name)]
        if project is not None and not file.is_absolute():
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


def plugin_notes(record: Record) -> Iterator[str]:
    """Yield the plugins to register before the engine is deserialized."""
    names = [
        f"{plugin.get('name')} ({plugin.get('file')})"
        for plugin in _needed_plugins(record)
        if not _is_registered(record, plugin)
    ]
    if names:
        yield f"register before deserializing: {', '.join(names)}"


def _needed_plugins(record: Record) -> list[Mapping[str, Any]]:
    found = record.figures.get("plugins")
    entries = found if isinstance(found, list) else []
    return [plugin for plugin in entries if isinstance(plugin, Mapping)]


def _is_registered(record: Record, plugin: Mapping[str, Any]) -> bool:
    """Return True if the registry of the loaded library has the plugin."""
    module: Any = sys.modules.get(LIBRARIES.get(record.backend, ""))
    registry = module.get_plugin_registry() if hasattr(module, "get_plugin_registry") else None
    # the second name is that of TensorRT 8.6
    look_up = getattr(registry, "get_creator", None) or getattr(
        registry, "get_plugin_creator", None
    )
    if look_up is None:
        return False
    names = (plugin.get(key, "") for key in ("name", "version", "namespace"))
    return look_up(*names) is not None
