"""The files of an engine: its header, its ``engine.json``, damage to them.

They are read without any library. The header of TensorRT-RTX engines was found by inspection:
``vtrt``, at byte 16 the size of the file in 8 bytes, at byte 24 the version in 4. A TensorRT engine
(``ftrt``) with its file's size in that place is assumed to have its version there, too.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildsys.system.files import read_limited, sha256_of
from buildsys.system.protobuf import Content, opened, varint

RECORD_NAME = "engine.json"
_COPY_FOLDER = "copy the engine's whole folder"
_REPLACE = "copy the engine's whole folder again, or build it"
_MAGIC = {b"vtrt": "tensorrt_rtx", b"ftrt": "tensorrt", b"ptrt": "tensorrt"}
_SIZE_AT, _VERSION_AT, _HEADER_BYTES = 16, 24, 28
_WIRE_BYTES = {1: 8, 5: 4}  # protobuf: fixed64, fixed32
_VARINT, _LENGTH = 0, 2
_MAX_NAME_BYTES = 255
_MAX_RECORD_BYTES = 64 << 20  # with an entry for every layer
_MAX_FIELDS = 100_000  # of an ONNX file, besides its graph
_ONNX_FIELDS, _GRAPH = {1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26}, 7  # of ModelProto


@dataclass(frozen=True)
class Reason:
    """A reason against running an engine here."""

    kind: str  # for programs: "gpu", "library", "version", "digest", …
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return problem and remedy on one line."""
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem


@dataclass(frozen=True)
class Header:
    """The facts in an engine file. ``backend`` is "" for an unknown kind."""

    backend: str
    version: str = ""
    whole_bytes: int | None = None  # the size the file should have, if stated
    truncated: bool = False


def read_header(engine: Path) -> Header:
    """Return the facts in an engine file. Raises: OSError: it cannot be read."""
    with opened(engine) as content:
        head, size = content[:_HEADER_BYTES], len(content)
        backend = _MAGIC.get(head[:4], "")
        if not backend:
            return _walk_onnx(content)
    if len(head) < _HEADER_BYTES:
        return Header(backend, truncated=True)
    whole = struct.unpack_from("<Q", head, _SIZE_AT)[0]
    version = ".".join(map(str, head[_VERSION_AT:_HEADER_BYTES]))
    if backend == "tensorrt_rtx":
        return Header(backend, version, whole, truncated=size < whole)
    return Header(backend, version, whole) if whole == size else Header(backend)


def _walk_onnx(content: Content) -> Header:
    """Return the facts in an ONNX file. A whole one ends with its last field."""
    seen, place, size, count = set[int](), 0, len(content), 0
    truncated = Header("onnxruntime", truncated=True)
    while place < size:
        count += 1
        if count > _MAX_FIELDS:
            return Header("")
        try:
            tag, place = varint(content, place)
        except (IndexError, ValueError):
            tag = 0
        kind, wire = tag >> 3, tag & 7
        if kind not in _ONNX_FIELDS or wire not in (_VARINT, _LENGTH, *_WIRE_BYTES):
            return truncated if _GRAPH in seen else Header("")
        seen.add(kind)
        try:
            if wire in _WIRE_BYTES:
                place += _WIRE_BYTES[wire]
            else:
                length, place = varint(content, place)
                place += length if wire == _LENGTH else 0
        except (IndexError, ValueError):
            return truncated
        if place > size:
            return truncated
    return Header("onnxruntime", truncated=_GRAPH not in seen) if seen else Header("")


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
    def files(self) -> dict[str, Mapping[str, Any]]:
        """Return the facts about the files in its folder, engine first."""
        files = self.map("files").items()
        return {str(name): facts for name, facts in files if isinstance(facts, Mapping)}


def read_record(engine: Path) -> Record | Reason:
    """Return the record of an engine, or the reason for its absence."""
    path = engine.with_name(RECORD_NAME)
    try:
        figures = json.loads(read_limited(path, _MAX_RECORD_BYTES))
    except FileNotFoundError:
        return Reason("record", f"{RECORD_NAME} is missing", _COPY_FOLDER)
    except OSError as error:
        return Reason("record", f"{path} cannot be read: {error.strerror}", "make it readable")
    except (ValueError, RecursionError) as error:
        return Reason("record", f"{path} is damaged: {error}", _REPLACE)
    if not isinstance(figures, dict) or not isinstance(figures.get("backend"), str):
        return Reason("record", f"{path} is not the record of an engine", _REPLACE)
    if figures.get("status", "passed") != "passed":
        why = figures.get("reason") or "its build did not pass"
        remedy = str(figures.get("hint") or "build it")
        return Reason("record", f"{path} says that no engine was built: {why}", remedy)
    record = Record(figures["backend"], figures)
    if strange := [name for name in record.files if not is_file_name(name)]:
        problem = f"{path} names {strange[0]!a}, which is no file of its folder"
        return Reason("record", problem, _REPLACE)
    return record


def is_file_name(name: str) -> bool:
    """Check for the name of a file without a path."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        return len(os.fsencode(name)) <= _MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


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
        else:
            known = facts.get("sha256") if files else record.figures.get("engine_sha256")
            recorded = str(known or "")
            if digest and recorded and (found := sha256_of(path)) != recorded:
                problem = f"its SHA-256 is {found[:16]}…, the recorded one is {recorded[:16]}…"
                problem = f"{path.name} is not the file that was built: {problem}"
                yield Reason("digest", problem, _REPLACE)
    if header.backend and header.backend != record.backend:
        problem = (
            f"{engine.name} is an engine of {header.backend},"
            f" but {RECORD_NAME} describes one of {record.backend}"
        )
        yield Reason("record", problem, _REPLACE)
