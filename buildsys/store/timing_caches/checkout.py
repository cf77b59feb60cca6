"""Private copies of timing caches for builds, merged back under a lock.

A cache only saves time: any problem with it costs a warning and a slower build. Only a pinned cache
is required.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.errors import StageError
from buildsys.store.timing_caches.files import (
    BY_DIGEST,
    SUFFIX,
    BrokenCacheError,
    Conditions,
    TimingCacheData,
    read_by_digest,
    read_shared,
    set_aside,
    shared_files,
    store_by_digest,
    write_shared,
)
from buildsys.system.file_locks import locked

# writes one file with the timings of all; returns warnings about those it could not use
Merge = Callable[[Sequence[Path], Path], "Sequence[str] | None"]
_LOCK_TIMEOUT_S = 60.0
_SHOWN_DIGITS = 16
# messages of backends.tensorrt.timing_cache
_REFUSED = re.compile(r"^the timing cache \S+ is (not used|broken)")
_MISS = re.compile(r"\bmiss", re.I)


@dataclass
class SharedTimingCache:
    """The timing cache of a folder for one set of conditions."""

    folder: Path
    conditions: Conditions
    merge: Merge
    warnings: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """Return the shared file."""
        return self.folder / f"{file_stem(self.conditions)}{SUFFIX}"

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
                    grown = built
                    if current is not None and current != original:
                        # another build has added timings meanwhile
                        grown = self._merged(current, built, private.parent)
                    write_shared(self.path, grown, self.conditions)
            store_by_digest(self.folder, built)
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

    def _merged(
        self, current: TimingCacheData, built: TimingCacheData, scratch: Path
    ) -> TimingCacheData:
        with TemporaryDirectory(dir=scratch) as folder:
            files = [Path(folder, "shared"), Path(folder, "built")]
            for file, content in zip(files, (current, built), strict=True):
                file.write_bytes(content.data)
            merged = Path(folder, "merged")
            try:
                self.warnings += self.merge(files, merged) or ()
                return TimingCacheData(merged.read_bytes())
            except (StageError, FileNotFoundError) as error:
                self._set_aside(f"cannot be merged ({error})")
                return built

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


def checkout_pinned(folder: Path, sha256: str, private: Path, engine: str) -> TimingCacheData:
    """Write a pinned cache to a private file and return it.

    Raises: StageError: it does not exist; the message lists the places searched.
    """
    path = folder / BY_DIGEST / sha256
    searched, content = str(path), None
    try:
        content = read_by_digest(folder, sha256)
    except BrokenCacheError as error:
        with suppress(OSError):  # a read-only folder: the message names the file anyway
            set_aside(path)
        searched = f"{path} (unusable: {error})"
    except OSError as error:
        searched = f"{path} ({error.strerror})"
    shared = shared_files(folder)
    for file in shared if content is None else ():
        with suppress(BrokenCacheError, OSError):
            found = read_shared(file)
            if found is not None and found.sha256 == sha256:
                content = found
                break
    if content is None:
        plural = "s" * (len(shared) != 1)
        raise StageError(
            f"{engine} pins the timing cache {sha256}, which was not found: searched {searched} "
            f"and {len(shared)} shared cache{plural} in {folder}",
            "copy it there from the machine that built it (timing_cache.digest of an engine.json), "
            "or pin another one",
        )
    private.write_bytes(content.data)
    return content


def pinned_figures(
    folder: Path, private: Path, original: TimingCacheData, messages: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of a build with a pinned cache.

    A cache that grew is stored as well, so that it can be pinned instead.
    Raises: StageError: the builder refused the cache.
    """
    refused = _refusal(messages)
    if refused:
        raise StageError(
            f"the builder refused the pinned timing cache {original.sha256[:_SHOWN_DIGITS]}…: "
            f"{refused}",
            "pin one built on such a GPU with this version of TensorRT",
        )
    misses = [m for m in messages if "timing cache" in m.lower() and _MISS.search(m)]
    built = original
    if private.is_file() and private.stat().st_size:
        built = TimingCacheData(private.read_bytes())
    added = len(built.data) - len(original.data)
    figures: dict[str, Any] = {
        "digest": original.sha256,
        "pinned": True,
        "bytes": len(original.data),
        "misses": len(misses),
        "added_bytes": max(0, added),
    }
    if added > 0:
        with suppress(OSError):
            store_by_digest(folder, built)
            figures["grown_digest"] = built.sha256
    return figures


def pinned_cache_warning(figures: Mapping[str, Any]) -> str:
    """Return a warning about missing timings, or ""."""
    if not figures.get("pinned") or not (figures.get("misses") or figures.get("added_bytes")):
        return ""
    grown = figures.get("grown_digest")
    return (
        f"timings were missing from the pinned timing cache {figures['digest'][:_SHOWN_DIGITS]}… "
        f"(it grew by {figures['added_bytes']} bytes), so some tactics were timed again and may "
        "differ from those of its first build"
    ) + (f"; the complete cache is {grown}" if grown else "")


def file_stem(conditions: Conditions) -> str:
    """Return a shared file's name: a readable part and a digest."""
    content = json.dumps(dict(conditions), sort_keys=True).encode()
    known = [conditions[name] for name in ("library", "gpu", "cuda") if conditions.get(name)]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(known))[:120]
    return f"{readable}_{hashlib.sha256(content).hexdigest()[:8]}"


def _refusal(messages: Sequence[str]) -> str:
    return next((text for text in messages if _REFUSED.search(text)), "")
