"""What a folder of timing caches holds, and what of it may go."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from buildsys.store.timing_caches.files import broken_files, files_by_digest, shared_files


@dataclass(frozen=True)
class Usage:
    """How many files of each kind there are, and what they take together."""

    shared: int
    kept: int
    broken: int
    bytes: int


@dataclass(frozen=True)
class Collected:
    """What was removed, or would be."""

    files: int
    bytes: int


def usage(folder: Path) -> Usage:
    """Return what a folder holds. Raises: OSError: it cannot be read."""
    shared, kept, broken = shared_files(folder), files_by_digest(folder), broken_files(folder)
    return Usage(len(shared), len(kept), len(broken), sum(map(_size, (*shared, *kept, *broken))))


def collect(
    folder: Path,
    *,
    wanted: Collection[str],
    unused_for_s: float | None,
    ours_alone: bool,
    dry_run: bool,
) -> Collected:
    """Remove what nobody needs: kept caches but the ``wanted`` ones, and what was set aside.

    With ``unused_for_s`` only what was not used for so long goes, and then shared caches as well. From a folder that is
    not ``ours_alone`` nothing goes without an age: other clones may pin what this one does not know.
    Raises: OSError: it cannot be read or written.
    """
    limit = time.time() - unused_for_s if unused_for_s is not None else None
    if limit is None and not ours_alone:
        return Collected(0, 0)
    files = [
        path
        for path in _loose(folder, wanted, shared=limit is not None)
        if limit is None or _used(path) < limit
    ]
    sizes = sum(map(_size, files))
    if not dry_run:
        for path in files:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
    return Collected(len(files), sizes)


def _loose(folder: Path, wanted: Collection[str], *, shared: bool) -> Iterator[Path]:
    yield from (path for path in files_by_digest(folder) if path.name not in wanted)
    yield from broken_files(folder)
    if shared:
        yield from shared_files(folder)


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _used(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return time.time()
