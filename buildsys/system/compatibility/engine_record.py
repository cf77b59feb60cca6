"""What is recorded of an engine in the ``engine.json`` beside it, and whether its files are still those."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildsys.system.compatibility.engine_header import Header
from buildsys.system.compatibility.verdict import Reason

RECORD_NAME = "engine.json"
_BLOCK_BYTES = 1 << 20
_COPY = "copy the engine's whole folder again, or build it"


@dataclass(frozen=True)
class Record:
    """The fields of an ``engine.json`` that say where the engine runs; what is missing in it is empty here."""

    backend: str
    figures: Mapping[str, Any] = field(repr=False)

    def map(self, name: str) -> Mapping[str, Any]:
        """Return one of its maps."""
        found = self.figures.get(name)
        return found if isinstance(found, Mapping) else {}

    @property
    def built_with(self) -> Mapping[str, Any]:
        """Return the libraries and devices that built it."""
        return self.map("built_with")

    @property
    def portability(self) -> Mapping[str, Any]:
        """Return what it was built to run on beside the machine that built it."""
        return self.map("portability")

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        """Return size and digest of the files of its folder, the engine first."""
        return {
            str(name): facts
            for name, facts in self.map("files").items()
            if isinstance(facts, Mapping)
        }


def read_record(engine: Path) -> Record | Reason:
    """Return what lies beside an engine, or why there is nothing to go by."""
    path = engine.with_name(RECORD_NAME)
    try:
        figures = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Reason(
            "record", f"there is no {RECORD_NAME} beside it", "copy the engine's whole folder"
        )
    except OSError as error:
        return Reason("record", f"{path} cannot be read: {error.strerror}", "make it readable")
    except ValueError as error:
        return Reason("record", f"{path} is damaged: {error}", _COPY)
    if not isinstance(figures, dict) or not isinstance(figures.get("backend"), str):
        return Reason("record", f"{path} is not the record of an engine", _COPY)
    if figures.get("status", "passed") != "passed":
        told = figures.get("reason") or "its build did not pass"
        return Reason(
            "record",
            f"{path} says that no engine was built: {told}",
            str(figures.get("hint") or "build it"),
        )
    return Record(figures["backend"], figures)


def damage(engine: Path, record: Record, header: Header, *, digest: bool) -> Iterator[Reason]:
    """Yield how the files differ from those that were built; ``digest`` reads all their bytes.

    Raises: OSError: one of them cannot be read.
    """
    files = record.files
    names = [engine.name if engine.name in files else next(iter(files), engine.name)]
    names += [name for name in files if name not in names]
    for name in names:
        path = engine if name == names[0] else engine.with_name(name)
        yield from _file_damage(path, files.get(name, {}), digest=digest)
    if not files and digest:
        yield from _digest_damage(engine, str(record.figures.get("engine_sha256") or ""))
    if header.backend and header.backend != record.backend:
        problem = f"{engine.name} is an engine of {header.backend}, and {RECORD_NAME} tells of one of {record.backend}"
        yield Reason("record", problem, _COPY)


def _file_damage(path: Path, facts: Mapping[str, Any], *, digest: bool) -> Iterator[Reason]:
    wanted = facts.get("bytes")
    if not path.is_file():
        problem = f"{path.name}, which the engine needs beside it, is missing"
        yield Reason("file", problem, "copy the engine's whole folder")
        return
    size = path.stat().st_size
    if isinstance(wanted, int) and size < wanted:
        yield Reason(
            "truncated", f"{path.name} is truncated: it has {size} of {wanted} bytes", _COPY
        )
    elif isinstance(wanted, int) and size > wanted:
        problem = (
            f"{path.name} is not the file that was built: it has {size} bytes instead of {wanted}"
        )
        yield Reason("digest", problem, _COPY)
    elif digest:
        yield from _digest_damage(path, str(facts.get("sha256") or ""))


def _digest_damage(path: Path, wanted: str) -> Iterator[Reason]:
    if wanted and (found := _sha256(path)) != wanted:
        problem = f"{path.name} is not the file that was built: its SHA-256 is {found[:16]}…, {wanted[:16]}… is recorded"
        yield Reason("digest", problem, _COPY)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
