"""The shared cache: the same layout as the store, in a place that fsspec reaches (a folder, SFTP, S3 …).

Whatever comes from there is compared with its digest. A place that does not answer within its time-out is left alone
for the rest of the run: it costs one warning and that time, never a build.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from buildsys.store.ledger import ActionRecord, OutputFile
from buildsys.store.object_store import Store, StoreWriteError
from buildsys.store.record_file import RecordError, decode_record, encode_record

READ_ONLY, READ_WRITE = "read-only", "read-write"
_CHUNK_BYTES = 1 << 20
_RENAMING = (
    "file",
    "local",
    "sftp",
    "ssh",
)  # where a file in the making is seen unless it is renamed into place
T = TypeVar("T")


@dataclass(frozen=True)
class SharedCacheSettings:
    """Where a shared cache is and how it may be used."""

    url: str
    mode: str = READ_ONLY  # read-only | read-write
    timeout_s: float = 30.0  # for all that one target needs from it


class SharedCache:
    """A shared cache. Threads may share it; no method raises because of the remote side."""

    def __init__(self, settings: SharedCacheSettings, notify: Callable[[str], None]) -> None:
        self.settings = settings
        self._notify = notify
        self._guard = threading.Lock()
        self._idle: list[
            _Place
        ] = []  # a connection serves one thread at a time: those of SFTP mix up two
        self._off = False
        self._damaged: set[str] = (
            set()
        )  # objects that were found not to be what they should: replaced when shared

    @property
    def writable(self) -> bool:
        """Whether results may be added."""
        return self.settings.mode == READ_WRITE and not self._off

    def read_action(self, target: str, key: str) -> ActionRecord | None:
        """Return the record of a key, None when there is none that can be used."""
        path = _action(key)
        content = self._within(lambda place: place.read(path), f"look up {target}")
        if content is None:
            return None
        try:
            return decode_record(content, target, key)
        except RecordError as error:
            self._notify(
                f"the shared cache {self._shown} holds {path}, which {error}; it is ignored"
            )
            return None

    def fetch(self, files: Iterable[OutputFile], store: Store) -> bool:
        """Bring contents into the store; False when one is missing, is not what it should be, or takes too long.

        Raises: OSError: the store cannot be written.
        """
        wanted = [file for file in files if not store.holds(file)]
        given_up = threading.Event()
        got = self._within(
            partial(self._fetch_all, wanted, store, given_up), "fetch outputs", given_up
        )
        if isinstance(got, OSError):
            raise got
        return got is True

    def push(self, record: ActionRecord, store: Store) -> None:
        """Add a record, after its objects; what is there already is not sent again."""
        if self.writable:
            given_up = threading.Event()
            self._within(
                partial(self._push, record, store, given_up), f"share {record.target}", given_up
            )

    @property
    def _shown(self) -> str:
        parts = urlsplit(self.settings.url)
        secret = f":{parts.password}@"
        return self.settings.url.replace(secret, ":***@") if parts.password else self.settings.url

    def _within(
        self, work: Callable[[_Place], T], attempt: str, given_up: threading.Event | None = None
    ) -> T | None:
        """Return the result of ``work``, None when it fails or takes too long: then the remote is left alone."""
        if self._off:
            return None
        results: list[T] = []
        problems: list[str] = []

        def run() -> None:
            try:
                place = self._take_place()
                with suppress(FileNotFoundError):  # there is no such thing there: no problem
                    results.append(work(place))
                self._idle.append(place)
            except Exception as error:  # each protocol has its own
                problems.append(" ".join(f"{type(error).__name__}: {error}".split()))

        thread = threading.Thread(target=run, daemon=True, name="shared cache")
        thread.start()
        thread.join(self.settings.timeout_s)
        if thread.is_alive():
            if given_up is not None:
                given_up.set()
            self._turn_off(f"did not {attempt} within {self.settings.timeout_s:g} s")
            return None
        if problems:
            self._turn_off(f"could not {attempt}: {problems[0]}")
        return results[0] if results else None

    def _turn_off(self, problem: str) -> None:
        with self._guard:
            first, self._off = not self._off, True
        if first:
            self._notify(f"the shared cache {self._shown} {problem}; this run goes on without it")

    def _take_place(self) -> _Place:
        with self._guard:
            if self._idle:
                return self._idle.pop()
        try:
            import fsspec  # slow to import: only a run that builds needs it
        except ImportError as error:
            raise RuntimeError("fsspec is not installed: pip install 'buildsys[remote]'") from error
        system, root = fsspec.core.url_to_fs(self.settings.url, **_options(self.settings))
        return _Place(system, str(root).rstrip("/"))

    def _fetch_all(
        self, files: list[OutputFile], store: Store, given_up: threading.Event, place: _Place
    ) -> bool | OSError:
        for file in files:
            with place.open(_object(file), "rb") as reader:
                try:
                    whole = store.add(file, _chunks(reader, given_up))
                except StoreWriteError as error:
                    return error.cause
            if not whole:
                self._damaged.add(file.digest)
                self._notify(
                    f"the shared cache {self._shown} holds {_object(file)} with another content; it is not used"
                )
                return False
        return True

    def _push(
        self, record: ActionRecord, store: Store, given_up: threading.Event, place: _Place
    ) -> None:
        for file in record.files.values():
            if file.digest in self._damaged or place.size(_object(file)) != file.size:
                with store.object_path(file.digest).open("rb") as reader:
                    place.write(_object(file), _chunks(reader, given_up))
        place.write(_action(record.key), iter([encode_record(record)]))


class _Place(NamedTuple):
    """A connection to the shared cache; paths are relative to it."""

    system: Any  # an fsspec file system, none of which has type information
    root: str

    def at(self, path: str) -> str:
        return f"{self.root}/{path}"

    def is_one_of(self, *protocols: str) -> bool:
        known = self.system.protocol
        names = {known} if isinstance(known, str) else set(known)
        return bool(names.intersection(protocols))

    def open(self, path: str, mode: str) -> Any:
        file = self.system.open(self.at(path), mode)
        if "w" in mode and hasattr(
            file, "set_pipelined"
        ):  # SFTP would wait for an answer every 32 KiB
            file.set_pipelined(True)
        if mode == "rb" and hasattr(file, "prefetch"):  # the same for reading
            file.prefetch(self.size(path))
        return file

    def read(self, path: str) -> bytes:
        with self.open(path, "rb") as file:
            return bytes(file.read())

    def size(self, path: str) -> int | None:
        try:
            return int(self.system.info(self.at(path))["size"])
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.system.rm(self.at(path))

    def make_folder_of(self, path: str) -> None:
        self.system.makedirs(self.at(path).rpartition("/")[0], exist_ok=True)

    def write(self, path: str, chunks: Iterator[bytes]) -> None:
        """Put a file in place as a whole."""
        self.make_folder_of(path)
        rename = self.is_one_of(*_RENAMING)  # others show a file when it has been written
        name = f"{path}.{uuid.uuid4().hex}.part" if rename else path
        with self.open(name, "wb") as writer:
            for chunk in chunks:
                writer.write(chunk)
        if not rename:
            return
        self.remove(path)  # SFTP does not replace
        try:
            self.system.mv(self.at(name), self.at(path))
        except OSError:
            self.remove(name)
            if not self.system.exists(
                self.at(path)
            ):  # else another machine was faster with the same content
                raise


def _object(file: OutputFile) -> str:
    return f"objects/{file.digest[:2]}/{file.digest}"


def _action(key: str) -> str:
    return f"actions/{key[:2]}/{key}.json"


def _chunks(reader: Any, given_up: threading.Event) -> Iterator[bytes]:
    while chunk := reader.read(_CHUNK_BYTES):
        if given_up.is_set():
            raise InterruptedError("given up")
        yield chunk


def _options(settings: SharedCacheSettings) -> dict[str, Any]:
    """Return what the protocols want to know; none of them may remember what a folder held a moment ago."""
    protocol = settings.url.partition("://")[0]
    if protocol in ("sftp", "ssh"):
        return {"timeout": settings.timeout_s, "skip_instance_cache": True}
    return {"skip_instance_cache": True, "use_listings_cache": False}
