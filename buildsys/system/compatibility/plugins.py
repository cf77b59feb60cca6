"""Whether the plugins that an engine needs can be had: registered already, or in files that are at hand."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.system.compatibility.engine_record import Record
from buildsys.system.compatibility.verdict import Reason
from buildsys.system.engine_environment import LIBRARIES

_SHOWN_DIGITS = 16


def plugin_obstacles(record: Record, engine: Path, project: Path | None) -> Iterator[Reason]:
    """Yield the plugins that are neither registered in this process nor to be found."""
    for plugin in _needed(record):
        if _is_registered(record, plugin) or _is_copied(record, plugin):
            continue
        file = _find(plugin, engine, project)
        named = (
            f"the plugin {plugin.get('name')} {plugin.get('version')} for {plugin.get('operator')}"
        )
        if file is None:
            problem = f"{named} is not registered in this process, and its file {plugin.get('file')} is not beside it"
            yield Reason(
                "plugin",
                problem,
                "register its creator before asking, or copy the file into the folder",
            )
        elif plugin.get("file_sha256") not in (None, found := _sha256(file)):
            recorded = str(plugin["file_sha256"])[:_SHOWN_DIGITS]
            problem = (
                f"{named} is another one: {file.name} has the SHA-256 {found[:_SHOWN_DIGITS]}…"
            )
            yield Reason(
                "plugin",
                f"{problem}, {recorded}… is recorded",
                "take the file that it was built with",
            )


def plugin_remarks(record: Record) -> Iterator[str]:
    """Yield what has to be registered before the engine is deserialized."""
    names = [
        f"{plugin.get('name')} ({plugin.get('file')})"
        for plugin in _needed(record)
        if not _is_registered(record, plugin)
    ]
    if names:
        yield f"register before deserializing: {', '.join(names)}"


def _needed(record: Record) -> list[Mapping[str, Any]]:
    found = record.figures.get("plugins")
    return (
        [plugin for plugin in found if isinstance(plugin, Mapping)]
        if isinstance(found, list)
        else []
    )


def _is_registered(record: Record, plugin: Mapping[str, Any]) -> bool:
    """Ask the library's registry, where the library is loaded."""
    module: Any = sys.modules.get(LIBRARIES.get(record.backend, ""))
    registry = module.get_plugin_registry() if hasattr(module, "get_plugin_registry") else None
    look = getattr(registry, "get_creator", None) or getattr(
        registry, "get_plugin_creator", None
    )  # until 8.6
    if look is None:
        return False
    return (
        look(plugin.get("name", ""), plugin.get("version", ""), plugin.get("namespace", ""))
        is not None
    )


def _is_copied(record: Record, plugin: Mapping[str, Any]) -> bool:
    """Tell whether it is a shared library that lies beside the engine; that file is looked at with the others."""
    return Path(str(plugin.get("file"))).name in record.files


def _find(plugin: Mapping[str, Any], engine: Path, project: Path | None) -> Path | None:
    file = Path(str(plugin.get("file")))
    places = [
        engine.with_name(file.name),
        *([project / file] if project and not file.is_absolute() else []),
    ]
    return next((place for place in places if place.is_file()), None)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
