"""Files: digests, stamps, locks, atomic replacement, images; cached texts of keys."""

import errno
import fcntl
import hashlib
import mmap
import os
import stat as stat_module
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from glob import glob, has_magic
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

# File times advance in steps of up to 10 ms: two writes within a step leave the same times.
SETTLE_NS = 30_000_000
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
IMAGE_FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # others of Pillow start programs
LIBRARY_FOLDERS = ("site-packages", "dist-packages")  # installed libraries are there
STATE_FOLDER = ".buildsys"  # of a project
MAX_RESULT_BYTES = 256 << 20  # a million samples of a benchmark have 20 MB
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # flags to open one itself
_BLOCK_BYTES = 1 << 20
_POLL_S = 0.005
_DIGITS = 16  # enough for people


class Stamp(NamedTuple):
    """The result of a stat; an unchanged stamp means unchanged content."""

    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        """Return the stamp in the result of a stat."""
        inode = status.st_ino & 0x7FFF_FFFF_FFFF_FFFF  # SQLite integers are signed
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_size, inode)

    def is_settled(self, since_ns: int) -> bool:
        """Check whether any write after ``since_ns`` would change the stamp."""
        return self.ctime_ns + SETTLE_NS < since_ns


def stamp(path: Path | str) -> Stamp | None:
    """Return the stamp of a file or folder, None if inaccessible."""
    try:
        return Stamp.of(os.stat(path))  # noqa: PTH116 - a Path costs three times as much
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


def open_regular(path: Path | str) -> BufferedReader:
    """Open a file to read it.

    Raises: OSError: it cannot be read. ValueError: it is not a regular file.
    """
    # opening a FIFO without a writer would hang
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat_module.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat_module.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise ValueError("not a regular file")


def read_limited(path: Path, limit: int) -> bytes:
    """Read the content of a regular file of at most ``limit`` bytes.

    Raises: OSError: it cannot be read. ValueError: it is not a regular file, or larger.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"it has {size >> 20} MiB, more than {limit >> 20} MiB")
        return file.read(limit)


@contextmanager
def mapped(path: str | Path) -> Iterator[mmap.mmap | bytes]:
    """Map a file into memory; an empty one gives b"". Raises: OSError."""
    with open(path, "rb") as file:  # noqa: PTH123 - often a string here
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def listing_digest(folder: str, unlisted: Container[str] = ()) -> str | None:
    """Digest the names in a folder; None if inaccessible.

    Hidden files, bytecode and ``unlisted`` paths are left out.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208 - only the names matter
    except (OSError, ValueError):
        return None
    visible = sorted(name for name in names if name[:1] != "." and name != "__pycache__")
    text = repr([name for name in visible if f"{folder}/{name}" not in unlisted])
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def sha256_of(*files: Path) -> str:
    """Digest one or several concatenated files."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the previous or the new content.

    Raises: OSError: it cannot be written; the previous file stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)  # a full disk has none
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def folder_below(parent: int, path: str, *, create: bool = False) -> Iterator[int]:
    """Open a folder below an open one, through no link. Raises: OSError."""
    descriptor = os.dup(parent)
    try:
        for part in PurePosixPath(path).parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            above, descriptor = descriptor, os.open(part, FOLDER, dir_fd=descriptor)
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_folder(name: str, parent: int) -> None:
    """Remove a folder of an open folder, through no link and at any depth.

    Raises: OSError: it is not a folder, or a part of it cannot be removed.
    """
    if stat_module.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.chmod(name, 0o700, dir_fd=parent)
    pending = [name]
    while pending:
        folder = os.open(pending[-1], FOLDER, dir_fd=parent)
        try:
            for entry in list(os.scandir(folder)):
                if entry.is_dir(follow_symlinks=False):
                    # moved up: neither recursion nor open files limit the depth
                    os.chmod(entry.name, 0o700, dir_fd=folder)
                    moved = f".removed-{os.urandom(8).hex()}"
                    os.rename(entry.name, moved, src_dir_fd=folder, dst_dir_fd=parent)
                    pending.insert(0, moved)
                else:
                    os.unlink(entry.name, dir_fd=folder)
        finally:
            os.close(folder)
        os.rmdir(pending.pop(), dir_fd=parent)


def read_end(path: Path, most_bytes: int) -> str:
    """Read the end of a text file, "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def image_files(folder: str) -> list[str]:
    """List the images below a folder, sorted. [] without the folder."""
    return sorted(
        f"{path}/{name}"
        for path, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(IMAGE_SUFFIXES)
    )


def source_files(root: str, source: str) -> list[str]:
    """List the files of a source of a folder, which is a file, or a pattern.

    A source ending in a slash, or a folder named like a pattern, stands for all images in it.
    """
    path = path_of(root, source)
    is_pattern = has_magic(source)
    if source.endswith("/") or (is_pattern and Path(path).is_dir()):
        return image_files(path)
    if is_pattern and not Path(path).is_file():
        names = glob(os.path.normpath(source), root_dir=root, recursive=True)  # noqa: PTH207
        return [path for name in sorted(names) if Path(path := path_of(root, name)).is_file()]
    return [path]


def path_of(root: str, name: str) -> str:
    """Join a folder and a name, which may leave it."""
    return os.path.normpath(os.path.join(root, name))  # noqa: PTH118


def is_below(path: str, folder: str) -> bool:
    """Check for a folder or a path in it, by their texts."""
    return path == folder or path.startswith(f"{folder.rstrip(os.sep)}{os.sep}")


def link_into(folder: Path, name: str, target: Path) -> Path:
    """Make ``name`` in ``folder`` a link to ``target``."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / name
    if not link.is_symlink() or link.readlink() != target:
        new = folder / f".{name}.{os.getpid()}"
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(link)  # another run may do the same
    return folder


def make_private(folder: Path) -> bool:
    """Make a folder; return False if others could write to it. Raises: OSError."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_open = status.st_uid != os.getuid() or status.st_mode & 0o077
    return stat_module.S_ISDIR(status.st_mode) and not is_open


def in_library(file: str) -> bool:
    """Check for a path below a folder of installed libraries."""
    return "/site-packages/" in file or "/dist-packages/" in file


def open_lock(path: Path, mode: int = 0o666) -> int:
    """Open a lock file, created if missing. Raises: OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file if no other process holds it. Raises: OSError: flock is not supported."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(
    path: Path, *, shared: bool = False, timeout_s: float | None = None, mode: int = 0o666
) -> Iterator[None]:
    """Hold the lock of a file, created if missing.

    Raises: BlockingIOError: another process held it for all of ``timeout_s``. OSError.
    """
    handle = open_lock(path, mode)
    try:
        if timeout_s is None:
            fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        else:
            deadline = time.monotonic() + timeout_s
            while not try_lock(handle, shared=shared):
                if time.monotonic() >= deadline:
                    problem = f"another process has held {path.name} for {timeout_s:g} s"
                    raise BlockingIOError(errno.EWOULDBLOCK, problem)
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


class TextCache(Protocol):
    """A persistent mapping of names to texts. A name must determine its text."""

    def get(self, name: str, /) -> str | None:
        """Return the text stored under ``name``, or None."""

    def set(self, name: str, text: str, /) -> None:
        """Store ``text`` under ``name``."""


def short_digest(whole: bytes) -> str:
    """Return the first digits of the SHA-256 of ``whole``."""
    return hashlib.sha256(whole).hexdigest()[:_DIGITS]


def shortened_for_key(part: str, whole: bytes) -> str:
    """Complete ``part`` with a digest of ``whole`` if that is not all of it.

    Without it, a change of what is not shown would leave a stale result.
    """
    if part.encode(errors="surrogateescape") == whole.strip():
        return part
    return f"{part}… (all of it: {short_digest(whole)})"
