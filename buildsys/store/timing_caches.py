"""TensorRT timing caches: measured tactic times, reused by later builds.

    FOLDER/LIBRARY-VERSION_GPU_….timing_cache   a JSON line of conditions, TensorRT's bytes
    FOLDER/….broken                             a damaged file, or one for other conditions

Files are checked at every read and replaced atomically. A build gets a private copy; of two builds
at the same time, the one with more timings stays. A cache only saves time: any problem with it
costs a warning and a slower build.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.system.files import read_limited, replace_file

SCHEMA = "buildsys/timing-cache/1"
SUFFIX, BROKEN = ".timing_cache", ".broken"
_MAX_BYTES = 1 << 30
Conditions = Mapping[str, str]  # library, GPU, driver and builder settings that timings hold for


class BrokenCacheError(Exception):
    """An unusable timing cache file."""


class TimingCacheFiles(NamedTuple):
    """The files of a folder by kind."""

    shared: list[Path]
    broken: list[Path]  # set aside


@dataclass
class SharedTimingCache:
    """The timing cache of a folder for one set of conditions."""

    folder: Path
    conditions: Conditions
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def path(self) -> Path:
        """The shared file: a readable part and a digest of the conditions."""
        content = json.dumps(dict(self.conditions), sort_keys=True).encode()
        names = [self.conditions[n] for n in ("library", "gpu", "cuda") if self.conditions.get(n)]
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(names))[:120]
        return self.folder / f"{readable}_{hashlib.sha256(content).hexdigest()[:8]}{SUFFIX}"

    def checkout(self, private: Path) -> bytes | None:
        """Copy the shared cache to a private file and return it."""
        try:
            content = self._read()
            if content is not None:
                private.write_bytes(content)
                with suppress(OSError):  # only the time of its last use
                    os.utime(self.path)
        except OSError as error:
            private.unlink(missing_ok=True)
            problem = f"the timing cache {self.path} cannot be read: {error.strerror}"
            self.warnings.append(f"{problem}; the build goes on without it")
            return None
        return content

    def merge_back(self, private: Path, original: bytes | None) -> dict[str, Any]:
        """Share the private file of a finished build; return its figures."""
        if not private.is_file() or private.stat().st_size == 0:
            return {}
        built = private.read_bytes()
        try:
            current = self._read()
            is_of_another_build = current is not None and current != original
            if not (is_of_another_build and len(current or b"") >= len(built)):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_shared(self.path, built, self.conditions)
        except OSError as error:
            self.warnings.append(
                f"the timing cache of this build cannot be kept in {self.folder}: "
                f"{error.strerror or error}; the next build times its tactics again"
            )
        # a cache that shrank was started again by the builder
        used = original if original is not None and len(built) >= len(original) else None
        figures = {
            "digest": _digest(built),
            "bytes": len(built),
            "added_bytes": len(built) - len(used or b""),
        }
        return figures if used is None else {**figures, "lent": _digest(used)}

    def _read(self) -> bytes | None:
        try:
            return read_shared(self.path, self.conditions)
        except BrokenCacheError as error:
            aside = set_aside(self.path).name
            self.warnings.append(
                f"the timing cache {self.path.name} is unusable: {error}; it was renamed to"
                f" {aside}, and a new one is started"
            )
            return None


def read_shared(path: Path, conditions: Conditions | None = None) -> bytes | None:
    """Read the content of a shared cache, None if there is none.

    Raises: BrokenCacheError: it is damaged, or for other conditions. OSError: it cannot be read.
    """
    try:
        stored = read_limited(path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BrokenCacheError(f"it is not a timing cache: {error}") from error
    line, _, content = stored.partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise BrokenCacheError("it has no timing cache header")
    if _digest(content) != header.get("sha256"):
        raise BrokenCacheError("its content is damaged")
    if conditions is not None and header.get("made_for") != dict(conditions):
        raise BrokenCacheError(f"it is for {header.get('made_for')}")
    return content


def write_shared(path: Path, content: bytes, conditions: Conditions) -> None:
    """Replace a shared cache.

    Raises: OSError: it cannot be written; the previous one stays.
    """
    header = {"schema": SCHEMA, "sha256": _digest(content), "made_for": dict(conditions)}
    replace_file(path, json.dumps(header).encode() + b"\n" + content, durable=True)


def list_files(folder: Path) -> TimingCacheFiles:
    """List the files of a folder."""
    return TimingCacheFiles(
        sorted(folder.glob(f"*{SUFFIX}")), sorted(folder.glob(f"*{SUFFIX}{BROKEN}*"))
    )


def damaged(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield every damaged file of a folder and its problem."""
    for path in list_files(folder).shared:
        try:
            read_shared(path)
        except BrokenCacheError as error:
            yield path, str(error)


def set_aside(path: Path) -> Path:
    """Take a file out of use; return its new path.

    Raises: OSError: it cannot be renamed.
    """
    return path.replace(path.with_name(path.name + BROKEN))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
