"""The shared store of a remote run: objects by digest, and small files in ``runs/RUN``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from buildsys.errors import StageError, joined
from buildsys.store.file_digests import hash_file
from buildsys.store.ledger import OutputFile
from buildsys.store.object_store import object_name
from buildsys.store.remote_folder import connect, remedy_of
from buildsys.system.files import MAX_RESULT_BYTES
from buildsys.system.printable import mask_secrets, mask_text

_CHUNK_BYTES = 1 << 20


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
            raise StageError(joined(problem, remedy_of(self._url, error))) from error
