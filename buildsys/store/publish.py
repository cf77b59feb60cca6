"""Outputs appear whole or not at all: written under ``build/.tmp``, digested, then renamed into place.

They are flushed in the background, while later stages run. After a power cut they are digested again, and a file that
did not survive it is stale.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from buildsys.errors import StageError
from buildsys.store.background import Background
from buildsys.store.file_digests import (
    SETTLE_NS,
    THREADS_FROM_BYTES,
    DigestMemo,
    FileDigest,
    hash_file,
    run_all,
    stamp_file,
)
from buildsys.store.state_db import warn_on_stderr

TEMPORARY = ".tmp"
_TREE = "tree"
_LOCK = "lock"
_REPLACED = "replaced-"
_LARGE_BYTES = 1 << 20
_LITTLE_BYTES = 1 << 20
_ABANDONED_S = 3600.0  # a folder without a lock file belongs to a process that died while making it


class Publisher:
    """Puts the outputs of an action into the build folder."""

    def __init__(
        self,
        build: Path,
        memo: DigestMemo,
        background: Background,
        notify: Callable[[str], None] = warn_on_stderr,
    ) -> None:
        self._build = build
        self._memo = memo
        self._background = background
        self._notify = notify

    @contextmanager
    def staging(self, target: str) -> Iterator[Path]:
        """Yield an empty folder that mirrors the build folder, on the same file system; it is removed at the end."""
        with _disk_errors(f"make a temporary folder in {self._build}"):
            folder, lock = self._make_folder(target)
        try:
            yield folder / _TREE
        finally:
            if any(
                folder.glob(f"{_REPLACED}*")
            ):  # freeing large files takes a while, and nobody waits for it
                threading.Thread(target=_discard, args=(folder, lock)).start()
            else:
                _discard(folder, lock)

    def seal(self, tree: Path) -> dict[str, FileDigest]:
        """Return the digests of all files of a finished tree by relative path. Symbolic links are left out."""
        paths = [
            path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()
        ]
        with _disk_errors("read the outputs"):
            large = sum(map(_settle, paths)) >= THREADS_FROM_BYTES
            digests = run_all([partial(hash_file, str(path)) for path in paths], in_threads=large)
        return {
            path.relative_to(tree).as_posix(): digest
            for path, digest in zip(paths, digests, strict=True)
        }

    def take(self, tree: Path, digests: Mapping[str, str]) -> dict[str, FileDigest]:
        """Return the same as ``seal`` for files whose digests are known already."""
        with _disk_errors("read the outputs"):
            for name in digests:
                _settle(tree / name)
        stamps = {name: stamp_file(str(tree / name)) for name in digests}
        return {
            name: FileDigest(digests[name], stamp)
            for name, stamp in stamps.items()
            if stamp is not None
        }

    def place(
        self, tree: Path, sealed: Mapping[str, FileDigest], last: str, *, restored: bool = False
    ) -> None:
        """Rename sealed files into the build folder; ``last`` (the result file) comes after all others.

        Files that are ``restored`` are not flushed: the store has them as well.
        """
        ordered = sorted(sealed, key=lambda name: (name == last, name))
        for name in ordered:
            with _disk_errors(f"publish {self._build / name}"):
                (self._build / name).parent.mkdir(parents=True, exist_ok=True)
                _keep_aside(self._build / name, tree.parent)
                (tree / name).replace(self._build / name)
        settled = list(self._settled(sealed))
        self._memo.remember(settled)
        if not restored:
            self._background.submit(
                partial(self._flush, [str(self._build / name) for name in sealed])
            )

    def little_room(self) -> str:
        """Return a sentence about the disk of the build folder if it is as good as full, else an empty string."""
        try:
            found = os.statvfs(self._build)
        except OSError:
            return ""
        room = found.f_bavail * found.f_frsize
        return (
            f"the disk of {self._build} has {room >> 10} KiB left" if room < _LITTLE_BYTES else ""
        )

    def remove(self, names: Iterable[str]) -> None:
        """Delete files that a target has published before and does not produce any more."""
        for name in names:
            with _disk_errors(f"remove {self._build / name}"):
                (self._build / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete the temporary folders of processes that have died."""
        temporary = self._build / TEMPORARY
        if temporary.is_dir():
            for folder in temporary.iterdir():
                _sweep_folder(folder)

    def _flush(self, paths: Iterable[str]) -> None:
        """Write published files to disk; the digest of a file that cannot be written is dropped."""
        for path in paths:
            try:
                _fsync(path)
            except FileNotFoundError:  # replaced or removed meanwhile
                continue
            except OSError as error:
                self._notify(
                    f"cannot write {path} to disk: {error.strerror}; the next run reads it again"
                )
                self._memo.drop(path)

    def _make_folder(self, target: str) -> tuple[Path, int]:
        """Return a new folder and its locked lock file: the lock tells ``sweep`` that the owner is alive."""
        while True:
            name = f"{target.replace(':', '@').replace('/', '%')}-{os.urandom(6).hex()}"
            folder = self._build / TEMPORARY / name
            (folder / _TREE).mkdir(parents=True)
            try:
                lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # swept in this very moment
            if _try_lock(lock) and (folder / _LOCK).exists():
                return folder, lock
            os.close(lock)

    def _settled(self, sealed: Mapping[str, FileDigest]) -> Iterator[tuple[str, FileDigest]]:
        """Yield the files whose digest may be remembered under the stamp that the rename gave them.

        Nobody can have written them while they lay in our own folder. Once public, a write shows in the
        modification time, if that is older than the clock's step.
        """
        for name, (digest, before) in sealed.items():
            path = str(self._build / name)
            stamp = stamp_file(path)
            if stamp is None or stamp._replace(ctime_ns=before.ctime_ns) != before:
                continue
            if stamp.ctime_ns - stamp.mtime_ns > SETTLE_NS:
                yield path, FileDigest(digest, stamp)


def _keep_aside(old: Path, folder: Path) -> None:
    """Give a large file that is about to be replaced a second name, so that freeing its pages is not waited for."""
    with suppress(OSError):  # there is none, or the file system has no links
        if old.stat().st_size >= _LARGE_BYTES:
            os.link(old, folder / f"{_REPLACED}{os.urandom(6).hex()}", follow_symlinks=False)


def _discard(folder: Path, lock: int) -> None:
    _remove(folder)  # what is left of it is swept by a later run
    os.close(lock)


def _remove(folder: Path) -> None:
    """Delete a temporary folder, its lock file last: without that nobody would dare to sweep it for a while."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name == _TREE:
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _settle(path: Path) -> int:
    """Date a file back a moment if it has just been written; return its size in bytes.

    A change right after the rename then shows in its times, and its digest may be remembered at once.
    """
    found = path.stat()
    if time.time_ns() - found.st_mtime_ns < 2 * SETTLE_NS:
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - 2 * SETTLE_NS))
    return found.st_size


def _fsync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep_folder(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        if _age_s(folder) > _ABANDONED_S:
            shutil.rmtree(folder, ignore_errors=True)  # another process may be at it as well
        return
    except OSError:
        return  # another user's, or no folder at all: not ours to judge
    try:
        if _try_lock(lock):
            _remove(folder)
    finally:
        os.close(lock)


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@contextmanager
def _disk_errors(attempt: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = (
            "free some space and run again; nothing that was published before is damaged"
            if full
            else ""
        )
        raise StageError(
            f"cannot {attempt}: {os.strerror(error.errno or errno.EIO)}", hint
        ) from error
