"""Folders held by descriptors, which stay the same whatever a program does to their paths."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from buildsys.system.files import FOLDER, folder_below, remove_folder

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class HeldFolder:
    """A folder that was opened before a program could replace it."""

    path: Path
    descriptor: int
    _identities: tuple[tuple[int, int], ...]

    @classmethod
    @contextmanager
    def hold(cls, path: Path) -> "Iterator[HeldFolder]":
        """Make a folder unless it exists, and hold it. Raises: OSError."""
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, FOLDER)
        try:
            yield cls(path, descriptor, _identities(path))
        finally:
            os.close(descriptor)

    def is_in_place(self) -> bool:
        """Check that the path still leads here, through the same folders."""
        try:
            return _identities(self.path) == self._identities
        except OSError:
            return False

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """Open a file or folder below for reading, through no link.

        Raises: OSError, ValueError: it does not exist; a part of it is a link, a pipe or a device.
        """
        descriptor = os.dup(self.descriptor)
        try:
            for part in PurePosixPath(path).parts:
                mode = os.stat(part, dir_fd=descriptor, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    raise ValueError(f"{part} is a link; `cp -L` copies what it names")
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise ValueError(f"{part} is not a plain file")  # opening it may never end
                parent, descriptor = descriptor, os.open(part, _READ, dir_fd=descriptor)
                os.close(parent)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def create(self, path: str, mode: int) -> Iterator[int]:
        """Create a file below for writing, with its folders, through no link. Raises: OSError."""
        folder, _, name = path.rpartition("/")
        with folder_below(self.descriptor, folder, create=True) as descriptor:
            file = os.open(name, _CREATE, 0o600, dir_fd=descriptor)
        try:
            yield file
            os.fchmod(file, mode)
        finally:
            os.close(file)

    def clear(self) -> None:
        """Remove everything below. Raises: OSError."""
        os.fchmod(self.descriptor, 0o700)
        entries: list[os.DirEntry[str]] = []
        with suppress(FileNotFoundError):  # the folder itself was removed
            entries += os.scandir(self.descriptor)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove_folder(entry.name, self.descriptor)
            else:
                os.unlink(entry.name, dir_fd=self.descriptor)


def _identities(path: Path) -> tuple[tuple[int, int], ...]:
    """Identify a folder and all folders above it."""
    statuses = [folder.lstat() for folder in (path, *path.parents)]
    return tuple((status.st_dev, status.st_ino) for status in statuses)
