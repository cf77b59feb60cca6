"""The content-addressed store: outputs by their digest, action records by their key.

    objects/ab/<BLAKE3 digest>    the content of an output, never written again
    actions/ab/<action key>.json  an action record: which outputs, with which digests
    quarantine/                   what did not have the content that its name says
    tmp/, lock                    files on their way in; held together by who adds, alone by who collects

Nothing in here is trusted: a record carries a checksum, and the digest of an object is compared whenever it is taken
out. No file in here is ever linked into a build folder, where an edit would reach it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import StageError
from buildsys.store.file_digests import hash_file
from buildsys.store.ledger import ActionRecord, OutputFile
from buildsys.store.record_file import RecordError, decode_record, encode_record

_FICLONE = (
    0x40049409  # linux/fs.h: let a file share the blocks of another one until either is written
)
_CHUNK_BYTES = 4 << 20
_ABANDONED_S = 3600.0


class DamagedError(StageError):
    """Something in the store is not what its name says; it has been put into quarantine."""


class StoreWriteError(Exception):
    """The store cannot be written, while the other side may be well."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class StoredAction(NamedTuple):
    """An action record in the store."""

    path: Path
    used: float  # when it was last written or restored, seconds since 1970
    record: ActionRecord


class Store:
    """A store in a folder. Several processes and threads may use it at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def object_path(self, digest: str) -> Path:
        """Return where the content with this digest lies, if it is here."""
        return self.folder / "objects" / digest[:2] / digest

    def action_path(self, key: str) -> Path:
        """Return where the record of this action key lies, if it is here."""
        return self.folder / "actions" / key[:2] / f"{key}.json"

    def holds(self, file: OutputFile) -> bool:
        """Return whether the content of an output is here, by name and size."""
        try:
            return self.object_path(file.digest).stat().st_size == file.size
        except OSError:
            return False

    def put(self, source: Path, file: OutputFile) -> bool:
        """Copy a file in; return False when it is gone or does not have that content any more.

        Raises: OSError: the store cannot be written.
        """
        target = self.object_path(file.digest)
        if self.holds(file):
            os.utime(target)
            return True
        with self._temporary() as temporary:
            try:
                found = copy_file(source, temporary, cache_pages=False)
            except FileNotFoundError:
                return False
            if found != file.digest:
                return False
            self._move_in(temporary, target)
        return True

    def add(self, file: OutputFile, chunks: Iterable[bytes]) -> bool:
        """Store a content that comes in pieces; False when it is not what ``file`` says.

        Raises: StoreWriteError: the store cannot be written; what ``chunks`` raises.
        """
        from blake3 import blake3  # not on the path of a run without work

        digest, size = blake3(), 0
        with self._temporary() as temporary:
            with _local_errors():
                writer = temporary.open("wb")
            with writer:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    with _local_errors():
                        writer.write(chunk)
            if digest.hexdigest() != file.digest or size != file.size:
                return False
            with _local_errors():
                self._move_in(temporary, self.object_path(file.digest))
        return True

    def fetch(self, file: OutputFile, target: Path) -> None:
        """Copy the content of an output to ``target``.

        Raises: DamagedError: it had another content. OSError: it is not here, or cannot be read or written.
        """
        source = self.object_path(file.digest)
        if copy_file(source, target) != file.digest:
            target.unlink()
            self.quarantine(source)
            raise DamagedError(
                f"{source} does not have the content that its name says; it was put into quarantine"
            )

    def read_action(self, target: str, key: str, *, looking: bool = False) -> ActionRecord | None:
        """Return the record of a key, None when there is none. ``looking`` leaves a damaged one where it is.

        Raises: DamagedError: it is cut short or edited.
        StageError: it cannot be read, or was written by a newer buildsys.
        """
        path = self.action_path(key)
        try:
            return decode_record(path.read_bytes(), target, key)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StageError(f"cannot read {path}: {error.strerror}") from error
        except RecordError as error:
            if error.newer:
                raise StageError(
                    f"{path} {error}", "update buildsys here, or use another store"
                ) from error
            if not looking:
                self.quarantine(path)
            raise DamagedError(f"{path} {error}; it was put into quarantine") from error

    def write_action(self, record: ActionRecord) -> None:
        """Store a record, after its objects. Raises: OSError: the store cannot be written."""
        with self._temporary() as temporary:
            temporary.write_bytes(encode_record(record))
            self._move_in(temporary, self.action_path(record.key))

    def mark_used(self, key: str) -> None:
        """Remember that an action was restored just now."""
        with suppress(OSError):  # a read-only store: it is collected by somebody else
            os.utime(self.action_path(key))

    def quarantine(self, path: Path) -> None:
        """Take something out of use and keep it for a look."""
        folder = self.folder / "quarantine"
        try:
            folder.mkdir(exist_ok=True)
            path.replace(folder / f"{path.name}.{time.strftime('%Y%m%dT%H%M%S')}")
        except OSError:  # a read-only store: every use finds it again
            return

    def actions(self) -> Iterator[StoredAction]:
        """Yield all records that can be read. Raises: OSError: the store cannot be read."""
        for path in sorted(self.folder.glob("actions/??/*.json")):
            try:
                yield StoredAction(
                    path, path.stat().st_mtime, decode_record(path.read_bytes(), "", path.stem)
                )
            except (FileNotFoundError, RecordError):
                continue  # just collected; or damaged, which `verify` tells

    def objects(self) -> Iterator[Path]:
        """Yield the files of all objects."""
        yield from sorted(self.folder.glob("objects/??/*"))

    @contextmanager
    def lock_for_adding(self) -> Iterator[None]:
        """Hold the store together with others who add to it: nothing is collected meanwhile.

        Raises: OSError: the store cannot be written.
        """
        with self._lock(fcntl.LOCK_SH):
            yield

    @contextmanager
    def lock_for_removal(self) -> Iterator[None]:
        """Hold the store while nobody adds to it. Raises: OSError: the store cannot be written."""
        with self._lock(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _lock(self, operation: int) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, operation)
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _temporary(self) -> Iterator[Path]:
        path = self.folder / "tmp" / f"{os.getpid()}-{os.urandom(8).hex()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _move_in(self, temporary: Path, target: Path) -> None:
        temporary.chmod(0o444)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(target)

    def remove_abandoned(self) -> None:
        """Delete what processes that died had on its way in. Raises: OSError: the store cannot be written."""
        for path in self.folder.glob("tmp/*"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()


@contextmanager
def _local_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreWriteError(error) from error


def copy_file(source: Path, target: Path, *, cache_pages: bool = True) -> str:
    """Copy a file, sharing its blocks if possible; return the BLAKE3 digest of the copy.

    Without ``cache_pages`` the kernel may drop the copy from the page cache at once.
    Raises: OSError: one of them cannot be read or written; a partial copy is removed.
    """
    from blake3 import blake3  # not on the path of a run without work

    with source.open("rb", buffering=0) as reader:
        try:
            with target.open("wb", buffering=0) as writer:
                try:
                    fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
                except OSError:  # another file system, or one that cannot share blocks
                    digest = blake3()
                    size = os.fstat(reader.fileno()).st_size
                    view = memoryview(bytearray(min(size + 1, _CHUNK_BYTES)))
                    while count := reader.readinto(view):
                        digest.update(view[:count])
                        written = 0
                        while written < count:
                            written += writer.write(view[written:count])
                    if not cache_pages:
                        os.posix_fadvise(writer.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    return digest.hexdigest()
            return hash_file(str(target)).digest
        except OSError:
            target.unlink(missing_ok=True)
            raise
