"""The ``engine.json`` next to an engine, and damage to the engine's files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildsys.system.compatibility.engine_header import Header
from buildsys.system.compatibility.result import Reason
from buildsys.system.files import sha256_of

RECORD_NAME = "engine.json"
_COPY_FOLDER = "copy the engine's whole folder"
_REPLACE = "copy the engine's whole folder again, or build it"


@dataclass(frozen=True)
class Record:
    """The content of an ``engine.json``; missing fields are empty."""

    backend: str
    figures: Mapping[str, Any] = field(repr=False)

    def map(self, name: str) -> Mapping[str, Any]:
        """Return a mapping field."""
        found = self.figures.get(name)
        return found if isinstance(found, Mapping) else {}

    @property
    def built_with(self) -> Mapping[str, Any]:
        """Return the libraries and devices of the build."""
        return self.map("built_with")

    @property
    def portability(self) -> Mapping[str, Any]:
        """Return its portability to other machines."""
        return self.map("portability")

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        """Return the facts about the files in its folder, engine first."""
        files = self.map("files").items()
        return {str(name): facts for name, facts in files if isinstance(facts, Mapping)}


def read_record(engine: Path) -> Record | Reason:
    """Return the record of an engine, or the reason for its absence."""
    path = engine.with_name(RECORD_NAME)
    try:
        figures = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Reason("record", f"{RECORD_NAME} is missing", _COPY_FOLDER)
    except OSError as error:
        return Reason("record", f"{path} cannot be read: {error.strerror}", "make it readable")
    except ValueError as error:
        return Reason("record", f"{path} is damaged: {error}", _REPLACE)
    if not isinstance(figures, dict) or not isinstance(figures.get("backend"), str):
        return Reason("record", f"{path} is not the record of an engine", _REPLACE)
    if figures.get("status", "passed") != "passed":
        why = figures.get("reason") or "its build did not pass"
        remedy = str(figures.get("hint") or "build it")
        return Reason("record", f"{path} says that no engine was built: {why}", remedy)
    return Record(figures["backend"], figures)


def find_damage(engine: Path, record: Record, header: Header, *, digest: bool) -> Iterator[Reason]:
    """Yield differences between an engine's files and its record. ``digest`` reads all bytes.

    Raises: OSError: a file cannot be read.
    """
    files = record.files
    names = [engine.name if engine.name in files else next(iter(files), engine.name)]
    names += [name for name in files if name not in names]
    for name in names:
        path = engine if name == names[0] else engine.with_name(name)
        facts = files.get(name, {})
        if not path.is_file():
            problem = f"{path.name} is missing, and the engine needs it in its folder"
            yield Reason("file", problem, _COPY_FOLDER)
            continue
        size, recorded = path.stat().st_size, facts.get("bytes")
        if isinstance(recorded, int) and size < recorded:
            problem = f"{path.name} is truncated: it has {size} of {recorded} bytes"
            yield Reason("truncated", problem, _REPLACE)
        elif isinstance(recorded, int) and size > recorded:
            problem = f"it has {size} bytes instead of {recorded}"
            problem = f"{path.name} is not the file that was built: {problem}"
            yield Reason("digest", problem, _REPLACE)
        elif digest:
            yield from _check_digest(path, str(facts.get("sha256") or ""))
    if not files and digest:
        yield from _check_digest(engine, str(record.figures.get("engine_sha256") or ""))
    if header.backend and header.backend != record.backend:
        problem = (
            f"{engine.name} is an engine of {header.backend},"
            f" but {RECORD_NAME} describes one of {record.backend}"
        )
        yield Reason("record", problem, _REPLACE)


def _check_digest(path: Path, recorded: str) -> Iterator[Reason]:
    if recorded and (found := sha256_of(path)) != recorded:
        problem = f"its SHA-256 is {found[:16]}…, the recorded one is {recorded[:16]}…"
        yield Reason("digest", f"{path.name} is not the file that was built: {problem}", _REPLACE)
