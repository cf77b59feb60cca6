"""Outputs appear whole or not at all: written under ``build/.tmp``, fsynced, then renamed into place."""

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
from buildsys.store.digest import SETTLE_NS, THREADS_FROM_BYTES, DigestMemo, FileDigest, hash_file, run_all, stamp_file

TEMPORARY = ".tmp"
_TREE = "tree"
_LOCK = "lock"
_REPLACED = "replaced-"
_LARGE_BYTES = 1 << 20
_ABANDONED_S = 3600.0  # a folder without a lock file belongs to a process that died while making it


class Publisher:
    """Puts the outputs of an action into the build folder."""

    def __init__(self, build: Path, memo: DigestMemo) -> None:
        self._build = build
        self._memo = memo

    @contextmanager
    def staging(self, target: str) -> Iterator[Path]:
        """Yield an empty folder that mirrors the build folder, on the same file system; it is removed at the end."""
        with _disk_errors(f"make a temporary folder in {self._build}"):
            folder, lock = self._make_folder(target)
        try:
            yield folder / _TREE
        finally:
            if any(folder.glob(f"{_REPLACED}*")):  # freeing large files takes a while, and nobody waits for it
                threading.Thread(target=_discard, args=(folder, lock)).start()
            else:
                _discard(folder, lock)

    def seal(self, tree: Path) -> dict[str, FileDigest]:
        """Make all files of a finished tree durable and return their digests by relative path.

        A file is read once, by the hash; fsync goes on beside it. Symbolic links are left out.
        """
        paths = [path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink()]
        with _disk_errors("write the outputs to disk"):
            large = sum(path.stat().st_size for path in paths) >= THREADS_FROM_BYTES
            jobs: list[Callable[[], FileDigest | None]] = [partial(_fsync, path) for path in paths]
            jobs += [partial(hash_file, str(path)) for path in paths]
            digests = [digest for digest in run_all(jobs, in_threads=large) if digest is not None]
        return {path.relative_to(tree).as_posix(): digest for path, digest in zip(paths, digests, strict=True)}

    def place(self, tree: Path, sealed: Mapping[str, FileDigest], last: str) -> None:
        """Rename sealed files into the build folder; ``last`` (the result file) comes after all others."""
        ordered = sorted(sealed, key=lambda name: (name == last, name))
        folders = {(self._build / name).parent for name in ordered}
        for name in ordered:
            with _disk_errors(f"publish {self._build / name}"):
                (self._build / name).parent.mkdir(parents=True, exist_ok=True)
                _keep_aside(self._build / name, tree.parent)
                (tree / name).replace(self._build / name)
        with _disk_errors(f"publish into {self._build}"):
            for folder in folders:
                _fsync(folder)
        self._memo.remember(self._settled(sealed))

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
    shutil.rmtree(folder, ignore_errors=True)  # what is left of it is swept by a later run
    os.close(lock)


def _fsync(path: Path) -> None:
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
            shutil.rmtree(folder, ignore_errors=True)
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
        hint = "free some space and run again; nothing that was published before is damaged" if full else ""
        raise StageError(f"cannot {attempt}: {os.strerror(error.errno or errno.EIO)}", hint) from error
