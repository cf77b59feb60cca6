"""Cache of resolved manifests, checked by the stamps of their files.

A load from the cache imports neither pydantic nor yaml, and leaves the models in the file, as JSON
text: a run may need one of a thousand, and ten thousand are 35 MB. A missing, broken or read-only
cache costs only time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import weakref
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from buildsys.errors import StageError
from buildsys.system.backend_registry import our_backends
from buildsys.system.files import MAX_RESULT_BYTES, Stamp, replace_file, stamp

SCHEMA = "buildsys/manifests/3"
_CHUNK_BYTES = 1 << 20
_LINE_BYTES = 100  # at most, of the checksum


class StoredText:
    """A text in an open cache file, which may have been replaced since."""

    __slots__ = ("_file", "_length", "_start")

    def __init__(self, file: _OpenFile, start: int, length: int) -> None:
        self._file, self._start, self._length = file, start, length

    def read(self) -> str:
        """Return the text. Raises: StageError: it cannot be read any more."""
        try:
            content = os.pread(self._file.descriptor, self._length, self._start)
        except OSError:
            content = b""
        if len(content) != self._length:
            raise StageError("the cache of manifests was cut off during the run", "run again")
        return content.decode()

    def __eq__(self, other: object) -> bool:
        return self.read() == (other.read() if isinstance(other, StoredText) else other)

    __hash__ = None  # type: ignore[assignment]


class _OpenFile:
    """A descriptor that is closed with the last reference."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)


@dataclass(frozen=True)
class Entry:
    """The models of one file (name, JSON text) and their dependencies."""

    models: Sequence[tuple[str, str | StoredText]]
    paths: list[str]


@dataclass
class Cache:
    """Entries by file, and the stamps of their dependencies."""

    entries: dict[str, Entry] = field(default_factory=dict)
    stamps: dict[str, Stamp | None] = field(default_factory=dict)
    digests: dict[str, tuple[Stamp, str]] = field(default_factory=dict)

    def valid_entries(self, root: Path) -> dict[str, Entry]:
        """Return the entries with unchanged stamps."""
        start = f"{root}{os.sep}"  # joined as text: there may be thousands
        unchanged = {
            path
            for path, known in self.stamps.items()
            if stamp(path if path.startswith(os.sep) else start + path) == known
        }
        return {
            file: entry for file, entry in self.entries.items() if unchanged.issuperset(entry.paths)
        }


def read_cache(file: Path, configs: str) -> Cache:
    """Return the cache in ``file``, empty if broken or outdated."""
    try:
        opened = _OpenFile(file)
        with open(opened.descriptor, "rb", closefd=False) as content:
            if os.fstat(opened.descriptor).st_size > MAX_RESULT_BYTES:
                return Cache()
            checksum, header = int(content.readline(_LINE_BYTES), 16), content.readline()
            start = content.tell()
            found = zlib.crc32(header)
            for chunk in _chunks(content):
                found = zlib.crc32(chunk, found)
        if found != checksum:
            return Cache()
        stored = json.loads(header)
        if stored["written_by"] != _writer(configs):
            return Cache()
        return Cache(
            {
                name: Entry(
                    [(model, StoredText(opened, start + at, size)) for model, at, size in models],
                    paths,
                )
                for name, (models, paths) in stored["entries"].items()
            },
            {path: known and Stamp(*known) for path, known in stored["stamps"].items()},
            {path: (Stamp(*known), digest) for path, (known, digest) in stored["digests"].items()},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Cache()


def _chunks(content: BinaryIO) -> Iterator[bytes]:
    while chunk := content.read(_CHUNK_BYTES):
        yield chunk


def write_cache(file: Path, configs: str, cache: Cache) -> None:
    """Replace the cache; without effect if it cannot be written."""
    texts: list[bytes] = []
    entries = {}
    end = 0
    for name, entry in cache.entries.items():
        models = []
        for model, text in entry.models:
            texts.append((text if isinstance(text, str) else text.read()).encode())
            models.append((model, end, len(texts[-1])))
            end += len(texts[-1])
        entries[name] = models, entry.paths
    stored = {
        "written_by": _writer(configs),
        "entries": entries,
        "stamps": cache.stamps,
        "digests": cache.digests,
    }
    header = json.dumps(stored, separators=(",", ":")).encode()  # on one line
    body = b"".join([header, b"\n", *texts])
    with contextlib.suppress(OSError):
        replace_file(file, b"%08x\n" % zlib.crc32(body) + body)


def _writer(configs: str) -> list[Any]:
    """Return the identity of this code and of pydantic."""
    here = Path(__file__).parent
    code = sorted(
        entry.path
        for folder in (here, here / "checks", here / "schema")
        for entry in os.scandir(folder)
        if entry.name.endswith(".py")
    )
    backends = here.parent / "backends"
    for name in our_backends():  # their fields
        modules = ("description", "options", "common_options")
        code += [f"{backends}/{name}/{module}.py" for module in modules]
    found = importlib.util.find_spec("pydantic")  # locates without importing
    version = Path(found.origin).with_name("version.py") if found and found.origin else here
    paths: list[Path | str] = [*code, here.parent / "errors.py", version]
    stamps = [list(stamp(path) or ()) for path in paths]
    return [SCHEMA, configs, list(sys.version_info[:3]), stamps]
