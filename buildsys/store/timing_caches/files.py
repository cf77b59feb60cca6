"""Timing cache files: what they hold is checked whenever they are read, and they appear whole or not at all.

FOLDER/LIBRARY-VERSION_GPU_….timing_cache   shared: one line of JSON that says what it is for, then TensorRT's bytes
FOLDER/by_digest/SHA-256                    TensorRT's bytes alone, as a build left them
FOLDER/….broken-TIME                        what was no such file, or one for something else
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SCHEMA = "buildsys/timing-cache/1"
SUFFIX, BROKEN, BY_DIGEST = ".timing_cache", ".broken-", "by_digest"
_LONGEST_HEADER = 4096
Conditions = Mapping[
    str, str
]  # library, GPU, driver and builder settings that its timings hold for


class BrokenCacheError(Exception):
    """A file is no timing cache, or not the one that its name says; the text says why."""


@dataclass(frozen=True)
class TimingCacheData:
    """TensorRT's bytes and their digest."""

    data: bytes
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> TimingCacheData:
        """Return bytes with their digest."""
        return cls(data, hashlib.sha256(data).hexdigest())


def read_shared(path: Path, made_for: Conditions | None = None) -> TimingCacheData | None:
    """Return what a shared file holds, None where there is none.

    Raises: BrokenCacheError: it is damaged, or not for ``made_for``. OSError: it cannot be read.
    """
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    line, newline, data = stored[:_LONGEST_HEADER].partition(b"\n")
    header = _header(line) if newline else None
    if header is None:
        raise BrokenCacheError("it does not begin like one")
    data = stored[len(line) + 1 :]
    if len(data) != header.get("bytes"):
        raise BrokenCacheError(f"it is cut short: {len(data)} of {header.get('bytes')} bytes")
    content = TimingCacheData.of(data)
    if content.sha256 != header.get("sha256"):
        raise BrokenCacheError("its content is damaged")
    if made_for is not None and header.get("made_for") != dict(made_for):
        raise BrokenCacheError(f"it is for {_shown(header.get('made_for'))}")
    return content


def write_shared(path: Path, content: TimingCacheData, made_for: Conditions) -> None:
    """Put a shared file in place. Raises: OSError: it cannot be written; the one before stays."""
    header = {
        "schema": SCHEMA,
        "sha256": content.sha256,
        "bytes": len(content.data),
        "made_for": dict(made_for),
    }
    _replace(path, json.dumps(header).encode() + b"\n" + content.data)


def read_by_digest(folder: Path, sha256: str) -> TimingCacheData | None:
    """Return the cache with this digest, None where it is not kept.

    Raises: BrokenCacheError: the file has other bytes. OSError: it cannot be read.
    """
    try:
        content = TimingCacheData.of((folder / BY_DIGEST / sha256).read_bytes())
    except FileNotFoundError:
        return None
    if content.sha256 != sha256:
        raise BrokenCacheError("it does not have the content that its name says")
    with suppress(OSError):  # only tells when it was used last
        os.utime(folder / BY_DIGEST / sha256)
    return content


def store_by_digest(folder: Path, content: TimingCacheData) -> None:
    """Keep a cache under its digest. Raises: OSError: it cannot be written."""
    path = folder / BY_DIGEST / content.sha256
    try:
        os.utime(path)
    except FileNotFoundError:
        _replace(path, content.data)


def shared_files(folder: Path) -> list[Path]:
    """Return the shared caches of a folder."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def files_by_digest(folder: Path) -> list[Path]:
    """Return the caches that are kept by digest."""
    return [
        path
        for path in sorted(folder.glob(f"{BY_DIGEST}/*"))
        if len(path.name) == hashlib.sha256().digest_size * 2
    ]


def broken_files(folder: Path) -> list[Path]:
    """Return what was set aside."""
    return sorted([*folder.glob(f"*{BROKEN}*"), *folder.glob(f"{BY_DIGEST}/*{BROKEN}*")])


def set_aside(path: Path) -> Path:
    """Take a file out of use; return where it lies now. Raises: OSError: it cannot be renamed."""
    for number in range(1000):
        aside = path.with_name(
            f"{path.name}{BROKEN}{time.strftime('%Y%m%dT%H%M%S')}{f'-{number}' if number else ''}"
        )
        if not aside.exists():
            break
    path.replace(aside)
    return aside


def damaged(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield every file of a folder that is not what it should be, and why."""
    for path in shared_files(folder):
        try:
            read_shared(path)
        except BrokenCacheError as error:
            yield path, str(error)
    for path in files_by_digest(folder):
        try:
            read_by_digest(folder, path.name)
        except BrokenCacheError as error:
            yield path, str(error)


def _header(line: bytes) -> dict[str, object] | None:
    try:
        header = json.loads(line)
    except ValueError:
        return None
    return header if isinstance(header, dict) and header.get("schema") == SCHEMA else None


def _shown(made_for: object) -> str:
    return (
        ", ".join(map(str, made_for.values())) if isinstance(made_for, dict) else "something else"
    )


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        _fsync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
