"""The shared cache: a store reached through fsspec (a folder, SFTP, S3).

Everything read from there is compared with its digest. A place that does not answer within its
time-out is not used for the rest of the run: it costs that time and one warning, never a build.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from buildsys.errors import StageError
from buildsys.store.file_digests import hash_file
from buildsys.store.ledger import PASSED, ActionRecord, OutputFile
from buildsys.store.object_store import Store, action_name, object_name
from buildsys.store.record_file import MAX_SHARED_BYTES, RecordError, decode_record, encode_record
from buildsys.store.remote_folder import RemoteFolder, connect, place_errors
from buildsys.system.files import MAX_RESULT_BYTES
from buildsys.system.printable import mask_secrets

READ_ONLY, READ_WRITE = "read-only", "read-write"
SHARED = "shared"  # the origin of records read here
_CHUNK_BYTES = 1 << 20
T = TypeVar("T")


class SharedCache:
    """A shared cache. Thread-safe; no method raises because of the remote side.

    ``timeout_s`` is for everything that one target needs from it, ``known_hosts`` a file with the
    host keys of SFTP servers besides the user's own.
    """

    def __init__(
        self,
        url: str,
        notify: Callable[[str], None],
        *,
        mode: str = READ_ONLY,
        timeout_s: float = 30.0,
        known_hosts: Path | None = None,
    ) -> None:
        self._url = url
        self._mode = mode
        self._timeout_s = timeout_s
        self._known_hosts = known_hosts
        self._name = f"the shared cache {mask_secrets(url)}"
        self._notify = notify
        self._guard = threading.Lock()
        self._connecting = threading.Lock()
        self._place: RemoteFolder | None = None
        self._off = False
        self._damaged: set[str] = set()  # objects to be replaced by the next push

    @property
    def is_writable(self) -> bool:
        """True if results of this machine are added."""
        return self._mode == READ_WRITE and not self._off

    def read_only(self) -> "SharedCache":
        """Make a cache of the same place to which nothing is added."""
        timeout_s, known_hosts = self._timeout_s, self._known_hosts
        return SharedCache(self._url, self._notify, timeout_s=timeout_s, known_hosts=known_hosts)

    def read_action(self, target: str, key: str) -> ActionRecord | None:
        """Read the record of a key, None if none is usable."""
        path = action_name(key)

        def read(place: RemoteFolder) -> bytes:
            with place.open_to_read(path) as file:
                return b"".join(_chunks(file, MAX_SHARED_BYTES + 1))

        content = self._within(read, f"look up {target}")
        if content is None:
            return None
        try:
            if len(content) > MAX_SHARED_BYTES:
                raise RecordError(f"is larger than {MAX_SHARED_BYTES >> 20} MiB")
            record = decode_record(content, target, key)
            if record.status != PASSED:  # nothing else is ever shared
                raise RecordError(f"has the status {record.status}")
        except RecordError as error:
            self._notify_ignored(path, str(error))
            return None
        return replace(record, origin=SHARED)

    def fetch(self, files: Iterable[OutputFile], store: Store) -> bool:
        """Copy objects into the store; return False unless all are valid.

        No more is read than the recorded sizes.
        """
        missing = {file.digest: file for file in files if not store.holds(file)}.values()
        if not missing:
            return True

        def fetch_all(place: RemoteFolder) -> bool:
            for file in missing:
                name = object_name(file.digest)
                matches = place.size(name) in (None, file.size)
                if matches:
                    with place.open_to_read(name) as reader:
                        matches = store.add(file, _chunks(reader, file.size))
                if not matches:
                    self._damaged.add(file.digest)
                    self._notify_ignored(name, "does not match its digest")
                    return False
            return True

        return self._within(fetch_all, "fetch outputs") is True

    def push(self, record: ActionRecord, store: Store) -> None:
        """Add a record, after its missing objects."""
        content = encode_record(record)
        if not self.is_writable or len(content) > MAX_SHARED_BYTES:  # nobody would read it
            return

        def push_all(place: RemoteFolder) -> None:
            for file in record.files.values():
                name = object_name(file.digest)
                if file.digest in self._damaged or not place.has(name, file.size):
                    with store.object_path(file.digest).open("rb") as reader:
                        place.write(name, _chunks(reader, file.size))
            place.write(action_name(record.key), [content])

        self._within(push_all, f"share {record.target}")

    def _within(self, work: Callable[[RemoteFolder], T], attempt: str) -> T | None:
        """Run ``work`` and return its result; turn off after an error or time-out."""
        results: list[T] = []
        problems: list[str] = []

        def run() -> None:
            try:
                with (
                    place_errors(f"{self._name} could not {attempt}"),
                    suppress(FileNotFoundError),  # a cache miss
                ):
                    results.append(work(self._connect()))
            except StageError as error:
                problems.append(str(error))

        if self._off:
            return None
        thread = threading.Thread(target=run, daemon=True, name="shared cache")
        thread.start()
        thread.join(self._timeout_s)
        if thread.is_alive():
            problems.insert(0, f"{self._name} did not {attempt} within {self._timeout_s:g} s")
        if not problems:
            return results[0] if results else None
        with self._guard:
            first, self._off = not self._off, True
        if first:
            self._notify(f"{problems[0]}; this run goes on without it")
        return None

    def _notify_ignored(self, path: str, problem: str) -> None:
        self._notify(f"{self._name} holds {path}, which {problem}; ignored")

    def _connect(self) -> RemoteFolder:
        with self._connecting:
            if self._place is None:
                self._place = connect(
                    self._url, known_hosts=self._known_hosts, timeout_s=self._timeout_s
                )
            return self._place


class Depot:
    """A connection to the shared store, for one thread. All methods raise StageError."""

    def __init__(self, url: str, known_hosts: Path | None = None) -> None:
        self._url = url
        with self._answers("connect"):
            self._place = connect(url, known_hosts=known_hosts)

    def put(self, path: Path) -> OutputFile:
        """Add a file, unless the store has it."""
        file = OutputFile(hash_file(str(path)).digest, path.stat().st_size)
        with path.open("rb") as reader:
            return self._put(file, _chunks(reader, file.size))

    def put_bytes(self, content: bytes) -> OutputFile:
        """Add an object, unless the store has it."""
        return self._put(OutputFile(blake3(content).hexdigest(), len(content)), [content])

    def _put(self, file: OutputFile, chunks: Iterable[bytes]) -> OutputFile:
        with self._answers("store an object"):
            if not self._place.has(object_name(file.digest), file.size):
                self._place.write(object_name(file.digest), chunks)
        return file

    def size(self, digest: str) -> int | None:
        """Look up the size of an object, None if it is missing."""
        with self._answers("look up an object"), suppress(FileNotFoundError):
            return self._place.size(object_name(digest))
        return None

    def chunks(self, file: OutputFile) -> Iterator[bytes]:
        """Yield the content of an object; a damaged one ends with an error."""
        digest, size, name = blake3(), 0, object_name(file.digest)
        with self._answers(f"read {name}"), self._place.open_to_read(name) as reader:
            for chunk in _chunks(reader, file.size + 1):
                digest.update(chunk)
                size += len(chunk)
                yield chunk
            if (digest.hexdigest(), size) != file:
                raise StageError(f"{name} of {self} is damaged", "remove it there, and run again")

    def content(self, file: OutputFile, limit: int) -> bytes:
        """Read a whole object."""
        if file.size > limit:
            problem = f"{object_name(file.digest)} of {self} has {file.size:,} bytes"
            raise StageError(f"{problem}, more than {limit:,}", "remove it there, and run again")
        return b"".join(self.chunks(file))

    def get(self, file: OutputFile, target: Path) -> None:
        """Copy an object to a new file."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as writer:
            writer.writelines(self.chunks(file))

    def write(self, run: str, name: str, content: bytes) -> None:
        """Write a file of a run."""
        with self._answers(f"write {name}"):
            self._place.write(f"runs/{run}/{name}", [content])

    def read(self, run: str, name: str) -> bytes | None:
        """Read a file of a run, None before it is written."""
        with (
            self._answers(f"read {name}"),
            suppress(FileNotFoundError),
            self._place.open_to_read(f"runs/{run}/{name}") as reader,
        ):
            return bytes(reader.read(MAX_RESULT_BYTES))
        return None

    def forget(self, run: str) -> None:
        """Remove the files of a run."""
        with self._answers(f"remove the run {run}"):
            self._place.remove(f"runs/{run}")

    def __str__(self) -> str:
        """Return the address without secrets."""
        return f"the shared cache {mask_secrets(self._url)}"

    def _answers(self, attempt: str) -> AbstractContextManager[None]:
        return place_errors(f"{self} could not {attempt}")


def _chunks(reader: Any, limit: int) -> Iterator[bytes]:
    """Yield at most ``limit`` bytes of a stream."""
    while limit > 0 and (chunk := reader.read(min(_CHUNK_BYTES, limit))):
        limit -= len(chunk)
        yield chunk
