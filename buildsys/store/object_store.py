"""The content-addressed store: outputs by digest, action records by key.

    objects/ab/<BLAKE3 digest>    the content of an output, never written again
    actions/ab/<action key>.json  an action record: its outputs and their digests
    quarantine/                   files whose content does not match their name
    tmp/                          files being added
    lock                          shared by writers, exclusive for removal

Nothing here is trusted: a record has a checksum, and every object is compared with its digest when
it is fetched. Files are copied, never linked, into a build folder: an edit there must not reach the
store.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import StageError
from buildsys.store.ledger import ActionRecord, OutputFile
from buildsys.store.record_file import RecordError, decode_record, encode_record, read_record
from buildsys.system.files import locked, open_regular, replace_file

_CHUNK_BYTES = 4 << 20


@dataclass(eq=False)
class DamagedError(StageError):
    """A damaged file in the store, now in quarantine."""

    is_external: bool = True


class StoredAction(NamedTuple):
    """An action record in the store."""

    path: Path
    used: float  # time of the last write or restore, seconds since 1970
    record: ActionRecord


class Store:
    """A store in a folder. Threads and processes may share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def object_path(self, digest: str) -> Path:
        """Locate the object with a digest."""
        return self.folder / object_name(digest)

    def action_path(self, key: str) -> Path:
        """Locate the record of an action key."""
        return self.folder / action_name(key)

    def has_actions(self) -> bool:
        """Check for a folder of records."""
        return os.path.exists(f"{self.folder}/actions")  # noqa: PTH110 - asked for every target

    def actions(self) -> Iterator[StoredAction]:
        """Yield all readable records. Raises: OSError: the store cannot be read."""
        for path in sorted(self.folder.glob("actions/??/*.json")):
            try:
                record = read_record(path, "", path.stem)
                yield StoredAction(path, path.stat().st_mtime, record)
            except (FileNotFoundError, RecordError):
                continue  # just removed, or damaged, which `verify` reports

    def holds(self, file: OutputFile) -> bool:
        """Look for an object of this name and size."""
        try:
            status = self.object_path(file.digest).stat()
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == file.size

    def put(self, source: Path, file: OutputFile) -> bool:
        """Copy a file in; return False if it is missing or changed.

        Raises: OSError: the store cannot be written.
        """
        if self.holds(file):
            os.utime(self.object_path(file.digest))
            return True
        try:
            with source.open("rb", buffering=0) as reader:
                return self.add(file, iter(partial(reader.read, _CHUNK_BYTES), b""))
        except FileNotFoundError:
            return False

    def add(self, file: OutputFile, chunks: Iterable[bytes]) -> bool:
        """Store content from chunks; return False if it does not match ``file``.

        Raises: OSError: the store cannot be written; what ``chunks`` raises.
        """
        temporary = self.folder / "tmp" / f"{os.getpid()}-{os.urandom(8).hex()}"
        temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            if not _write_object(temporary, file, chunks):
                return False
            temporary.chmod(0o444)
            target = self.object_path(file.digest)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def fetch(self, file: OutputFile, target: Path) -> None:
        """Copy an object to ``target``.

        Raises: DamagedError: it does not match its digest. OSError: it cannot be read or written.
        """
        source = self.object_path(file.digest)
        try:
            with open_regular(source) as reader:
                chunks = iter(partial(reader.read, _CHUNK_BYTES), b"")
                is_whole = _write_object(target, file, chunks)
        except ValueError:  # a FIFO or a device
            is_whole = False
        if not is_whole:
            self.quarantine(source)
            raise DamagedError(f"{source} does not match its digest; it was put into quarantine")

    def read_action(self, target: str, key: str) -> ActionRecord | None:
        """Read the record of a key, None if there is none.

        Raises: DamagedError: it is truncated or edited; it goes into quarantine.
        StageError: it cannot be read, or was written by a newer buildsys.
        """
        path = self.action_path(key)
        try:
            return read_record(path, target, key)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StageError(
                f"cannot read {path}: {error.strerror}",
                "check the permissions of the store, or its disk",
            ) from error
        except RecordError as error:
            if error.newer:
                hint = "update buildsys here, or use another store"
                raise StageError(f"{path} {error}", hint) from error
            self.quarantine(path)
            raise DamagedError(f"{path} {error}; it was put into quarantine") from error

    def write_action(self, record: ActionRecord) -> None:
        """Store a record, after its objects.

        Raises: OSError: the store cannot be written. RecordError: it could not be read again.
        """
        content = encode_record(record)
        decode_record(content, record.target, record.key)
        replace_file(self.action_path(record.key), content)

    def quarantine(self, path: Path) -> None:
        """Take a file out of use and keep it for inspection."""
        folder = self.folder / "quarantine"
        with suppress(OSError):  # a read-only store: every use finds it again
            folder.mkdir(exist_ok=True)
            path.replace(folder / f"{path.name}.{time.strftime('%Y%m%dT%H%M%S')}")

    def lock(self, *, shared: bool) -> AbstractContextManager[None]:
        """Hold the store, ``shared`` to add and alone to remove. Raises: OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return locked(self.folder / "lock", shared=shared)


def _write_object(path: Path, file: OutputFile, chunks: Iterable[bytes]) -> bool:
    """Write a file; remove it and return False if it does not match its digest and size."""
    from blake3 import blake3  # not on the path of a run without work

    digest, size = blake3(), 0
    try:
        with path.open("wb") as writer:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                if size > file.size:
                    break
                writer.write(chunk)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    if (digest.hexdigest(), size) == file:
        return True
    path.unlink()
    return False


def object_name(digest: str) -> str:
    """Name the file of an object within a store."""
    return f"objects/{digest[:2]}/{digest}"


def action_name(key: str) -> str:
    """Name the file of an action record within a store."""
    return f"actions/{key[:2]}/{key}.json"
