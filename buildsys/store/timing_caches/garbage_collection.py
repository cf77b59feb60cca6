"""Usage and garbage collection of a folder of timing caches."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
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
    size = sum(found.st_size for kind in kinds for found in _stats(kind).values())
    shared, kept, broken = map(len, kinds)
    return TimingCacheUsage(shared, kept, broken, size)


def collect(
    folder: Path,
    *,
    wanted: Collection[str],
    unused_for_s: float | None,
    private: bool,
    dry_run: bool,
) -> TimingCacheCollection:
    """Remove caches stored by digest except ``wanted`` ones, and files set aside.

    With ``unused_for_s`` only files unused for that long are removed, including shared caches.
    Without it nothing is removed from a folder that is not ``private``: other clones may pin caches
    unknown here.
    Raises: OSError: the folder cannot be read or written.
    """
    files = [path for path in files_by_digest(folder) if path.name not in wanted]
    files += broken_files(folder)
    if unused_for_s is not None:
        limit = time.time() - unused_for_s
        stats = _stats([*files, *shared_files(folder)])
        stats = {path: found for path, found in stats.items() if found.st_mtime < limit}
    else:
        stats = _stats(files) if private else {}
    if not dry_run:
        for path in stats:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
    return TimingCacheCollection(len(stats), sum(found.st_size for found in stats.values()))


def _stats(paths: Iterable[Path]) -> dict[Path, os.stat_result]:
    """Return the stats of existing files; another process may remove some meanwhile."""
    found = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found[path] = path.stat()
    return found
