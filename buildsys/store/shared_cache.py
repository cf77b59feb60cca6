"""The shared cache: a store reached through fsspec (a folder, SFTP, S3).

Everything read from there is compared with its digest. A place that does not answer within its
time-out is not used for the rest of the run: it costs that time and one warning, never a build.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from buildsys.errors import StageError, joined
from buildsys.store.file_digests import hash_file
from buildsys.store.ledger import PASSED, ActionRecord, OutputFile
from buildsys.store.object_store import Store, action_name, object_name
from buildsys.store.record_file import (
    MAX_SHARED_BYTES,
    RecordError,
    decode_record,
    encode_record,
)
from buildsys.store.remote_folder import RemoteFolder, connect, remedy_of
from buildsys.system.files import MAX_RESULT_BYTES
from buildsys.system.printable import mask_secrets, mask_text

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

    def read_action(self, target: str, key: str) -> ActionRecord | None:
        """Read the record of a key, None if none is usable."""
        path = action_name(key)
        content = self._within(partial(_read_small, path=path), f"look up {target}")
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

        def fetch_all(place: RemoteFolder, timed_out: threading.Event) -> bool:
            for file in missing:
                name = object_name(file.digest)
                size = place.size(name)
                matches = size in (None, file.size)
                if matches:
                    with place.open_to_read(name) as reader:
                        matches = store.add(file, _chunks(reader, timed_out, file.size))
                if not matches:
                    self._damaged.add(file.digest)
                    self._notify_ignored(name, "does not match its digest")
                    return False
            return True

        return self._within(fetch_all, "fetch outputs") is True

    def push(self, record: ActionRecord, store: Store) -> None:
        """Add a record, after its missing objects."""
        if not self.is_writable:
            return
        content = encode_record(record)
        if len(content) > MAX_SHARED_BYTES:  # nobody would read it
            return

        def push_all(place: RemoteFolder, timed_out: threading.Event) -> None:
            for file in record.files.values():
                name = object_name(file.digest)
                if file.digest in self._damaged or not place.has(name, file.size):
                    with store.object_path(file.digest).open("rb") as reader:
                        place.write(name, _chunks(reader, timed_out, file.size))
            place.write(action_name(record.key), iter([content]))

        self._within(push_all, f"share {record.target}")

    def _within(self, work: Callable[[RemoteFolder, threading.Event], T], attempt: str) -> T | None:
        """Run ``work`` and return its result; turn off after an error or time-out.

        The event is set after a time-out, to end ``work``.
        """
        if self._off:
            return None
        results: list[T] = []
        problems: list[str] = []
        timed_out = threading.Event()

        def run() -> None:
            try:
                with suppress(FileNotFoundError):  # a cache miss
                    results.append(work(self._connect(), timed_out))
            except Exception as error:  # each protocol has its own
                problem = " ".join(f"{type(error).__name__}: {error}".split())
                problem = joined(problem, remedy_of(error))
                problems.append(f"could not {attempt}: {problem}")

        thread = threading.Thread(target=run, daemon=True, name="shared cache")
        thread.start()
        thread.join(self._timeout_s)
        late = thread.is_alive()
        if late:
            timed_out.set()
            problems.insert(0, f"did not {attempt} within {self._timeout_s:g} s")
        if problems:
            with self._guard:
                first, self._off = not self._off, True
            if first:
                problem = mask_text(problems[0])
                self._notify(f"{self._name} {problem}; this run goes on without it")
        return results[0] if results and not late else None

    def _notify_ignored(self, path: str, problem: str) -> None:
        self._notify(f"{self._name} holds {path}, which {problem}; ignored")

    def _connect(self) -> RemoteFolder:
        with self._connecting:
            if self._place is None:
                self._place = connect(
                    self._url, known_hosts=self._known_hosts, timeout_s=self._timeout_s
                )
            return self._place


def _read_small(place: RemoteFolder, timed_out: threading.Event, path: str) -> bytes:
    """Read at most one byte more than a record may have. Raises: FileNotFoundError."""
    with place.open_to_read(path) as file:
        return b"".join(_chunks(file, timed_out, MAX_SHARED_BYTES + 1))


def _chunks(reader: Any, timed_out: threading.Event, limit: int) -> Iterator[bytes]:
    """Yield at most ``limit`` bytes of a stream."""
    while limit > 0 and (chunk := reader.read(min(_CHUNK_BYTES, limit))):
        if timed_out.is_set():
            raise InterruptedError("timed out")
        limit -= len(chunk)
        yield chunk


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
            self._put(file, iter(lambda: reader.read(_CHUNK_BYTES), b""))
        return file

    def put_bytes(self, content: bytes) -> OutputFile:
        """Add an object, unless the store has it."""
        file = OutputFile(blake3(content).hexdigest(), len(content))
        self._put(file, iter([content]))
        return file

    def _put(self, file: OutputFile, chunks: Iterator[bytes]) -> None:
        with self._answers("store an object"):
            if not self._place.has(object_name(file.digest), file.size):
                self._place.write(object_name(file.digest), chunks)

    def size(self, digest: str) -> int | None:
        """Look up the size of an object, None if it is missing."""
        with self._answers("look up an object"):
            try:
                return self._place.size(object_name(digest))
            except FileNotFoundError:
                return None

    def chunks(self, file: OutputFile) -> Iterator[bytes]:
        """Yield the content of an object; a damaged one ends with an error."""
        digest, size, name = blake3(), 0, object_name(file.digest)
        with self._answers(f"read {name}"), self._place.open_to_read(name) as reader:
            while size <= file.size and (chunk := reader.read(_CHUNK_BYTES)):
                digest.update(chunk)
                size += len(chunk)
                yield chunk
            if (digest.hexdigest(), size) != file:
                raise StageError(f"{name} of {self} is damaged", "remove it there, and run again")

    def get(self, file: OutputFile, target: Path) -> None:
        """Copy an object to a new file."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as writer:
            writer.writelines(self.chunks(file))

    def write(self, run: str, name: str, content: bytes) -> None:
        """Write a file of a run."""
        with self._answers(f"write {name}"):
            self._place.write(f"runs/{run}/{name}", iter([content]))

    def read(self, run: str, name: str) -> bytes | None:
        """Read a file of a run, None before it is written."""
        with self._answers(f"read {name}"):
            try:
                with self._place.open_to_read(f"runs/{run}/{name}") as reader:
                    return bytes(reader.read(MAX_RESULT_BYTES))
            except FileNotFoundError:
                return None

    def forget(self, run: str) -> None:
        """Remove the files of a run."""
        with self._answers(f"remove the run {run}"):
            self._place.remove(f"runs/{run}")

    def __str__(self) -> str:
        """Return the address without secrets."""
        return f"the shared cache {mask_secrets(self._url)}"

    @contextmanager
    def _answers(self, attempt: str) -> Iterator[None]:
        try:
            yield
        except StageError:
            raise
        except Exception as error:  # each protocol has its own
            words = " ".join(f"{type(error).__name__}: {error}".split())
            problem = mask_text(f"{self} could not {attempt}: {words}")
            raise StageError(joined(problem, remedy_of(error))) from error
