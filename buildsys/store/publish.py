"""Atomic publication of outputs: written under ``build/.tmp``, digested, renamed.

After a power cut they are digested again, and a file that did not survive it is stale.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from types import MappingProxyType
from typing import TYPE_CHECKING

from buildsys.errors import StageError
from buildsys.store.file_digests import DigestCache, FileDigest, hash_file, stamp_file
from buildsys.store.ledger import Ledger
from buildsys.store.record_file import check_names
from buildsys.system.files import FOLDER, SETTLE_NS, Stamp, folder_below, remove_folder, try_lock

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

TEMPORARY = ".tmp"
_OURS = re.compile(r".+@.+-\w{8}|\.removed-[0-9a-f]{16}")
_LOW_DISK_BYTES = 1 << 20


class Background:
    """A thread for storing outputs, started by the first work."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._futures: list[Future[None]] = []

    def submit(self, work: Callable[[], None]) -> None:
        """Run a piece of work after earlier ones."""
        from concurrent.futures import ThreadPoolExecutor  # 10 ms, too much for a run without work

        with self._guard:
            self._executor = self._executor or ThreadPoolExecutor(1, "background")
            self._futures.append(self._executor.submit(work))

    def close(self) -> None:
        """Wait until all work is done. Raises: what the first failed piece of work raised."""
        with self._guard:
            executor, self._executor = self._executor, None
            futures, self._futures = self._futures, []
        if executor is not None:
            executor.shutdown()
        for future in futures:
            future.result()


class Publisher:
    """Puts the outputs of an action into the build folder."""

    def __init__(self, build: Path, digests: DigestCache, ledger: Ledger) -> None:
        self._build = build
        self._digests = digests
        self._ledger = ledger
        self._sweeping = threading.Lock()
        self._swept = False

    @contextmanager
    def staging(self, target: str) -> Iterator[Path]:
        """Yield a temporary folder on the build folder's file system."""
        name, parent = target.replace(":", "@").replace("/", "%"), self._build / TEMPORARY
        refuse_links(self._build)
        with ExitStack() as stack:
            with disk_errors(f"make a temporary folder in {self._build}"):
                parent.mkdir(parents=True, exist_ok=True)
                lock = os.open(parent, FOLDER)
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_SH)
                folder = Path(mkdtemp(prefix=f"{name}-", dir=parent))
                stack.callback(_remove_folder, folder.name, lock)
            yield folder

    def remove_abandoned(self) -> None:
        """Delete the folders of dead processes, once, unless a living one has some now."""
        with self._sweeping, suppress(OSError):
            if not self._swept:
                self._swept = True
                with self._folder_of(f"{TEMPORARY}/any") as folder:
                    abandoned = list(os.scandir(folder)) if try_lock(folder) else ()
                    for name in (entry.name for entry in abandoned):
                        if _OURS.fullmatch(name):
                            _remove_folder(name, folder)

    def digest_outputs(
        self, tree: Path, known_digests: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, FileDigest]:
        """Digest all files in a tree, without symbolic links.

        Files with ``known_digests`` are not read.
        """
        paths = (path for path in sorted(tree.rglob("*")) if not path.is_symlink())
        files = {path.relative_to(tree).as_posix(): path for path in paths if path.is_file()}
        try:
            check_names(files)
        except ValueError as error:
            raise StageError(
                f"the outputs cannot be stored: {error}", "write fewer files, or shorter names"
            ) from None
        digests = {}
        with disk_errors("read the outputs"):
            for name, path in files.items():
                stat = path.stat()
                # a write right after the rename then shows in the times of the file, so its digest
                # can be cached at once
                if time.time_ns() - stat.st_mtime_ns < 2 * SETTLE_NS:
                    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - 2 * SETTLE_NS))
                if name in known_digests:
                    digests[name] = FileDigest(known_digests[name], Stamp.of(path.stat()))
                else:
                    digests[name] = hash_file(str(path))
        return digests

    def publish(
        self,
        target: str,
        tree: Path,
        outputs: Mapping[str, FileDigest],
        *,
        last: str,
        optional: Collection[str] = (),
    ) -> None:
        """Make ``outputs`` the published files of a target.

        They are renamed from ``tree``, the result file ``last``. All other files of the target are
        removed first, including ``optional`` ones. Files are recorded before, in case of a kill
        midway. No link is followed: the program of another target may make some now.
        """
        refuse_links(self._build, outputs)
        unwanted = (self._ledger.owned(target) | set(optional)) - outputs.keys()
        self._ledger.claim(target, outputs)
        for name in sorted(unwanted):
            with (
                disk_errors(f"remove {self._build / name}"),
                suppress(FileNotFoundError),
                self._folder_of(name) as folder,
            ):
                os.unlink(PurePosixPath(name).name, dir_fd=folder)
        cached = []
        for name in sorted(outputs, key=lambda name: (name == last, name)):
            path, (digest, before) = self._build / name, outputs[name]
            written = f"{TEMPORARY}/{tree.name}/{name}"
            with (
                disk_errors(f"publish {path}"),
                self._folder_of(written) as source,
                self._folder_of(name, create=True) as place,
            ):
                os.replace(path.name, path.name, src_dir_fd=source, dst_dir_fd=place)
            # Nobody can write the file while it is in our temporary folder. A later write shows in
            # the modification time, if that is older than a step of the clock.
            now = stamp_file(str(path))
            unchanged = now is not None and now._replace(ctime_ns=before.ctime_ns) == before
            if now is not None and unchanged and now.ctime_ns - now.mtime_ns > SETTLE_NS:
                cached.append((str(path), FileDigest(digest, now)))
        self._digests.add(cached)

    @contextmanager
    def _folder_of(self, name: str, *, create: bool = False) -> Iterator[int]:
        build = os.open(self._build, FOLDER)
        try:
            with folder_below(build, str(PurePosixPath(name).parent), create=create) as folder:
                yield folder
        finally:
            os.close(build)

    def low_disk_note(self) -> str:
        """Write a sentence if the disk is almost full, else ""."""
        with suppress(OSError):
            disk = os.statvfs(self._build)
            free = disk.f_bavail * disk.f_frsize
            if free < _LOW_DISK_BYTES:
                return f"the disk of {self._build} has {free >> 10} KiB left"
        return ""


def _remove_folder(name: str, parent: int) -> None:
    with suppress(OSError):
        remove_folder(name, parent)


def refuse_links(build: Path, names: Iterable[str] = ()) -> None:
    """Refuse links in place of the build folder or of a folder of outputs.

    Raises: StageError: there is one, as a program may leave it.
    """
    for folder in {build, *(parent for name in names for parent in (build / name).parents)}:
        if folder.is_relative_to(build) and folder.is_symlink():
            hint = ", or name its folder in BUILDSYS_BUILD" if folder == build else ""
            raise StageError(f"{folder} is a link, and may lead anywhere", f"remove it{hint}")


@contextmanager
def disk_errors(attempt: str) -> Iterator[None]:
    """Raise OSErrors as StageErrors."""
    try:
        yield
    except OSError as error:
        hint = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space and run again; nothing that was published before is damaged"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "check the permissions of the build folder"
        problem = f"cannot {attempt}: {os.strerror(error.errno or errno.EIO)}"
        raise StageError(problem, hint, is_external=True) from error
