"""Files beneath an open folder, whatever another program does to their paths meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from buildsys.system.files import Stamp

_BLOCK_BYTES = 1 << 26
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def held(descriptor: int) -> Iterator[int]:
    """Yield a descriptor and close it."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_folder(path: Path) -> int:
    """Open a folder. Raises: OSError: it is a link, or not a folder."""
    return os.open(path, _FOLDER)


def is_at(path: Path, folder: int) -> bool:
    """Check that a path still leads to an open folder, and is not a link."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(folder))
    except OSError:
        return False


def open_beneath(folder: int, path: str) -> int:
    """Open a file or folder beneath an open folder to read it.

    Raises: OSError: it does not exist; a part of its path is a link, a pipe or a device.
    """
    at = os.dup(folder)
    try:
        for part in PurePosixPath(path).parts:
            # neither follows a link nor opens a device: that alone may have an effect
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at, mode = inner, os.fstat(inner).st_mode
            if part == ".." or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                kind = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
                raise OSError(errno.ELOOP, f"{part} is {kind}", path)
        return os.open(f"/proc/self/fd/{at}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(at)


def create_beneath(folder: int, path: str) -> int:
    """Create a file and its parents beneath an open folder, and open it to write.

    Raises: OSError: it exists, or a part of its path is not a folder.
    """
    *parents, name = PurePosixPath(path).parts
    at = os.dup(folder)
    try:
        for part in parents:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=at)
            inner = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=at)
    finally:
        os.close(at)


def copy_open_file(source: int, target: int) -> int:
    """Copy a file with its permissions; return its size in bytes.

    Raises: OSError: it is not a file, changes meanwhile, or is larger than the free space.
    """
    before, space = os.fstat(source), os.fstatvfs(target)
    if not stat.S_ISREG(before.st_mode):
        raise OSError(errno.EISDIR, "it is not a file")
    if before.st_size > space.f_bavail * space.f_frsize:
        size = f"{before.st_size / 2**30:,.1f} GiB"
        raise OSError(errno.ENOSPC, f"its {size} are more than the free space of the build folder")
    left = before.st_size
    while left > 0 and (copied := os.sendfile(target, source, None, min(left, _BLOCK_BYTES))):
        left -= copied
    os.fchmod(target, before.st_mode & 0o777)
    if left or Stamp.of(os.fstat(source)) != Stamp.of(before):
        raise OSError(errno.EBUSY, "a process still writes it")
    return before.st_size


def folder_entries(folder: int, path: str) -> list[tuple[str, bool]]:
    """List names in a folder beneath an open one, and whether they are folders.

    Raises: OSError: as ``open_beneath``, or it is not a folder.
    """
    with held(open_beneath(folder, path)) as descriptor, os.scandir(descriptor) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


def empty_folder(folder: int) -> None:
    """Remove what is in an open folder, as far as possible."""
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except OSError:  # perhaps a folder; rmtree would open a pipe, which may not return
            shutil.rmtree(f"/proc/self/fd/{folder}/{name}", ignore_errors=True)
