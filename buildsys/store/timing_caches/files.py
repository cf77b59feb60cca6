"""The files of timing caches, checked at every read and replaced atomically.

FOLDER/LIBRARY-VERSION_GPU_….timing_cache   shared: a JSON line of conditions, TensorRT's bytes
FOLDER/by_digest/SHA-256                    TensorRT's bytes alone, as a build left them
FOLDER/….broken-TIME                        a damaged file, or one for other conditions
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from buildsys.system.files import replace_file

SCHEMA = "buildsys/timing-cache/1"
SUFFIX, BROKEN, BY_DIGEST = ".timing_cache", ".broken-", "by_digest"
_LONGEST_HEADER = 4096
Conditions = Mapping[str, str]  # library, GPU, driver and builder settings that timings hold for


class BrokenCacheError(Exception):
    """An unusable timing cache file."""


@dataclass(frozen=True)
class TimingCacheData:
    """TensorRT's bytes and their digest."""

    data: bytes

    @cached_property
    def sha256(self) -> str:
        """The digest of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


def read_shared(path: Path, conditions: Conditions | None = None) -> TimingCacheData | None:
    """Return the content of a shared cache, None if there is none.

    Raises: BrokenCacheError: it is damaged, or for other conditions. OSError: it cannot be read.
    """
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    line, newline, _ = stored[:_LONGEST_HEADER].partition(b"\n")
    try:
        header = json.loads(line) if newline else None
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise BrokenCacheError("it has no timing cache header")
    content = TimingCacheData(stored[len(line) + 1 :])
    if len(content.data) != header.get("bytes"):
        size = header.get("bytes")
        raise BrokenCacheError(f"it is truncated: {len(content.data)} of {size} bytes")
    if content.sha256 != header.get("sha256"):
        raise BrokenCacheError("its content is damaged")
    found = header.get("made_for")
    if conditions is not None and found != dict(conditions):
        shown = ", ".join(map(str, found.values())) if isinstance(found, dict) else "something else"
        raise BrokenCacheError(f"it is for {shown}")
    return content


def write_shared(path: Path, content: TimingCacheData, conditions: Conditions) -> None:
    """Replace a shared cache. Raises: OSError: it cannot be written; the previous one stays."""
    header = {
        "schema": SCHEMA,
        "sha256": content.sha256,
        "bytes": len(content.data),
        "made_for": dict(conditions),
    }
    replace_file(path, json.dumps(header).encode() + b"\n" + content.data, durable=True)


def read_by_digest(folder: Path, sha256: str) -> TimingCacheData | None:
    """Return the cache with a digest, None if it is not stored.

    Raises: BrokenCacheError: the file has other bytes. OSError: it cannot be read.
    """
    path = folder / BY_DIGEST / sha256
    try:
        content = TimingCacheData(path.read_bytes())
    except FileNotFoundError:
        return None
    if content.sha256 != sha256:
        raise BrokenCacheError("it does not match its digest")
    with suppress(OSError):  # only the time of its last use
        os.utime(path)
    return content


def store_by_digest(folder: Path, content: TimingCacheData) -> None:
    """Store a cache under its digest. Raises: OSError: it cannot be written."""
    path = folder / BY_DIGEST / content.sha256
    try:
        os.utime(path)
    except FileNotFoundError:
        replace_file(path, content.data, durable=True)


def shared_files(folder: Path) -> list[Path]:
    """Return the shared caches of a folder."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def files_by_digest(folder: Path) -> list[Path]:
    """Return the caches stored by digest."""
    return [path for path in sorted(folder.glob(f"{BY_DIGEST}/*")) if len(path.name) == 64]


def broken_files(folder: Path) -> list[Path]:
    """Return the files set aside."""
    return sorted([*folder.glob(f"*{BROKEN}*"), *folder.glob(f"{BY_DIGEST}/*{BROKEN}*")])


def damaged(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield every damaged file of a folder and its problem."""
    for path in [*shared_files(folder), *files_by_digest(folder)]:
        try:
            if path.parent.name == BY_DIGEST:
                read_by_digest(folder, path.name)
            else:
                read_shared(path)
        except BrokenCacheError as error:
            yield path, str(error)


def set_aside(path: Path) -> Path:
    """Take a file out of use; return its new path. Raises: OSError: it cannot be renamed."""
    for number in range(1000):
        suffix = f"{BROKEN}{time.strftime('%Y%m%dT%H%M%S')}{f'-{number}' if number else ''}"
        aside = path.with_name(f"{path.name}{suffix}")
        if not aside.exists():
            break
    path.replace(aside)
    return aside
