"""TensorRT timing caches: measured tactic times, reused by later builds.

    FOLDER/LIBRARY-VERSION_GPU_….timing_cache   a JSON line of conditions, TensorRT's bytes
    FOLDER/….broken-TIME                        a damaged file, or one for other conditions

Files are checked at every read and replaced atomically. A build gets a private copy, merged back
under a lock. A cache only saves time: any problem with it costs a warning and a slower build.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.system.file_locks import locked
from buildsys.system.files import read_limited, replace_file

SCHEMA = "buildsys/timing-cache/1"
SUFFIX, BROKEN = ".timing_cache", ".broken-"
_LONGEST_HEADER = 4096
_MAX_BYTES = 1 << 30
Conditions = Mapping[str, str]  # library, GPU, driver and builder settings that timings hold for
_LOCK_TIMEOUT_S = 60.0
# messages of backends.tensorrt.build
_REFUSED = re.compile(r"^the timing cache \S+ is (not used|broken)")


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

    def checkout(self, private: Path) -> TimingCacheData | None:
        """Copy the shared cache to a private file and return it."""
        try:
            content = self._read()
            if content is not None:
                private.write_bytes(content.data)
                with suppress(OSError):  # only the time of its last use
                    os.utime(self.path)
        except OSError as error:
            private.unlink(missing_ok=True)
            problem = f"the timing cache {self.path} cannot be read: {error.strerror}"
            self.warnings.append(f"{problem}; the build goes on without it")
            return None
        return content

    def merge_back(
        self, private: Path, original: TimingCacheData | None, messages: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Merge the private file of a finished build; return its figures.

        A shared cache that the builder refused, according to its ``messages``, is set aside.
        """
        if not private.is_file() or private.stat().st_size == 0:
            return {}
        built, refused = TimingCacheData(private.read_bytes()), _refusal(messages)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.path.with_suffix(".lock"), timeout_s=_LOCK_TIMEOUT_S):
                if refused and original is not None and self._read() == original:
                    self._set_aside("was refused by the builder")
                current = self._read()
                if current is None or current.sha256 != built.sha256:
                    # another build may have added timings, on another GPU of this kind
                    others = [] if current in (None, original) else [current]
                    largest = max([*others, built], key=lambda cache: len(cache.data))
                    write_shared(self.path, largest, self.conditions)
        except OSError as error:
            self.warnings.append(
                f"the timing cache of this build cannot be kept in {self.folder}: "
                f"{error.strerror or error}; the next build times its tactics again"
            )
        # a cache that shrank was started again by the builder
        used = original
        if refused or (original is not None and len(built.data) < len(original.data)):
            used = None
        added = len(built.data) - (len(used.data) if used else 0)
        figures = {"digest": built.sha256, "bytes": len(built.data), "added_bytes": added}
        return {**figures, "lent": used.sha256} if used else figures

    def _read(self) -> TimingCacheData | None:
        try:
            return read_shared(self.path, self.conditions)
        except BrokenCacheError as error:
            self._set_aside(f"is unusable: {error}")
            return None

    def _set_aside(self, problem: str) -> None:
        aside = set_aside(self.path).name
        self.warnings.append(
            f"the timing cache {self.path.name} {problem}; it was renamed to {aside}, "
            "and a new one is started"
        )


def read_shared(path: Path, conditions: Conditions | None = None) -> TimingCacheData | None:
    """Read the content of a shared cache, None if there is none.

    Raises: BrokenCacheError: it is damaged, or for other conditions. OSError: it cannot be read.
    """
    try:
        stored = read_limited(path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BrokenCacheError(f"it is no timing cache: {error}") from error
    line, newline, _ = stored[:_LONGEST_HEADER].partition(b"\n")
    try:
        header = json.loads(line) if newline else None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise BrokenCacheError("it has no timing cache header")
    content = TimingCacheData(stored[len(line) + 1 :])
    if len(content.data) != header.get("bytes"):
        size = header.get("bytes")
        raise BrokenCacheError(f"it is truncated: {len(content.data)} of {size} bytes")
    if content.sha256 != header.get("sha256"):
        raise BrokenCacheError("its content is damaged")
    made_for = header.get("made_for")
    if conditions is not None and made_for != dict(conditions):
        conditions_text = (
            ", ".join(map(str, made_for.values()))
            if isinstance(made_for, dict)
            else "something else"
        )
        raise BrokenCacheError(f"it is for {conditions_text}")
    return content


def write_shared(path: Path, content: TimingCacheData, conditions: Conditions) -> None:
    """Replace a shared cache.

    Raises: OSError: it cannot be written; the previous one stays.
    """
    header = {
        "schema": SCHEMA,
        "sha256": content.sha256,
        "bytes": len(content.data),
        "made_for": dict(conditions),
    }
    replace_file(path, json.dumps(header).encode() + b"\n" + content.data, durable=True)


def list_files(folder: Path) -> TimingCacheFiles:
    """List the files of a folder."""
    return TimingCacheFiles(
        sorted(folder.glob(f"*{SUFFIX}")),
        sorted(folder.glob(f"*{BROKEN}*")),
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
    for number in range(1000):
        suffix = f"{BROKEN}{time.strftime('%Y%m%dT%H%M%S')}{f'-{number}' if number else ''}"
        aside = path.with_name(f"{path.name}{suffix}")
        if not aside.exists():
            break
    path.replace(aside)
    return aside


def _refusal(messages: Sequence[str]) -> str:
    return next((text for text in messages if _REFUSED.search(text)), "")
