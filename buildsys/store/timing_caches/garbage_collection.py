"""Usage and garbage collection of a folder of timing caches."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from buildsys.store.timing_caches.files import broken_files, files_by_digest, shared_files


@dataclass(frozen=True)
class TimingCacheUsage:
    """The number of files of each kind, and the size of all."""

    shared: int
    kept: int  # by digest
    broken: int
    bytes: int


@dataclass(frozen=True)
class TimingCacheCollection:
    """The result of a garbage collection or its dry run."""

    files: int
    bytes: int


def usage(folder: Path) -> TimingCacheUsage:
    """Return the usage of a folder. Raises: OSError: it cannot be read."""
    kinds = shared_files(folder), files_by_digest(folder), broken_files(folder)
    shared, kept, broken = map(len, kinds)
    return TimingCacheUsage(
        shared, kept, broken, sum(_size(path) for kind in kinds for path in kind)
    )


def collect(
    folder: Path,
    *,
    wanted: Collection[str],
    unused_for_s: float | None,
    private: bool,
    dry_run: bool,
) -> TimingCacheCollection:
    """Remove caches stored by digest except ``wanted`` ones, and files set aside.

    With ``unused_for_s`` only files unused for that long are removed, including shared caches. Without it nothing is
    removed from a folder that is not ``private``: other clones may pin caches that this one does not know.
    Raises: OSError: the folder cannot be read or written.
    """
    files = [path for path in files_by_digest(folder) if path.name not in wanted]
    files += broken_files(folder)
    if unused_for_s is not None:
        limit = time.time() - unused_for_s
        files = [path for path in [*files, *shared_files(folder)] if _used(path) < limit]
    elif not private:
        files = []
    size = sum(map(_size, files))
    if not dry_run:
        for path in files:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
    return TimingCacheCollection(len(files), size)


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _used(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return time.time()
