"""Published versions of engines, each a folder ``MODEL/ENGINE/VERSION`` at a URL.

    engine.onnx, engine.json, …  the files of the engine's folder
    reports/                     the results of its checks, and the report
    provenance.json              what it was built from and with
    SHA256SUMS                   for `sha256sum -c`
    version.json                 the files with sizes and digests; without it there is no version

provenance.json is written first and exclusively: it has the digests of all files, so it keeps
another engine out of the same version. version.json is written last.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from buildsys.errors import StageError
from buildsys.store.ledger import OutputFile, utc_now
from buildsys.store.remote_folder import RemoteFolder

SCHEMA = "buildsys/engine-version/1"
DOCUMENT, CHECKSUMS, PROVENANCE = "version.json", "SHA256SUMS", "provenance.json"
_CHUNK_BYTES = 4 << 20
_MAX_DOCUMENT_BYTES = 8 << 20


class VersionFile(NamedTuple):
    """A local file of a version, as a build recorded it."""

    path: Path
    recorded: OutputFile


class EngineVersion(NamedTuple):
    """An engine to be published under a version."""

    model: str
    engine: str
    version: str
    files: Mapping[str, VersionFile]  # by name in the version
    provenance: Mapping[str, Any]

    @property
    def place(self) -> str:
        """The folder of the version."""
        return f"{self.model}/{self.engine}/{self.version}"


def publish_version(folder: RemoteFolder, engine: EngineVersion) -> bool:
    """Copy an engine to its place; return False if already there.

    Raises: StageError: the version has other files, or a file has changed since it was built.
    Exception: a problem of the place; each protocol has its own.
    """
    if _is_published(folder, engine):
        return False
    provenance, path = _to_json(engine.provenance), f"{engine.place}/{PROVENANCE}"
    try:
        folder.create(path, provenance)
    except FileExistsError:  # an unfinished publication, perhaps of the same files
        with folder.open_to_read(path) as reader:
            is_same = reader.read(len(provenance) + 1) == provenance
        if not is_same:
            problem = f"{engine.place} has files of another, unfinished publication"
            hint = f"choose another --version, or remove {engine.place}"
            raise StageError(problem, hint) from None
    _write(folder, engine)
    return True


def list_versions(folder: RemoteFolder) -> Iterator[dict[str, Any]]:
    """Yield the documents of all versions, with ``problem`` for unreadable ones."""
    for model in folder.names("", "directory"):
        for engine in folder.names(model, "directory"):
            for version in folder.names(f"{model}/{engine}", "directory"):
                names = {"model": model, "engine": engine, "version": version}
                try:
                    document = read_version(folder, f"{model}/{engine}/{version}")
                except StageError as error:
                    yield {**names, "published": "", "files": {}, "problem": error.problem}
                    continue
                if document is not None:
                    yield {**document, **names}


def _is_published(folder: RemoteFolder, engine: EngineVersion) -> bool:
    """Check whether the same files are published.

    Raises: StageError: the version exists with others, or is damaged.
    """
    document = read_version(folder, engine.place)
    if document is None:
        return False
    theirs = {name: file.get("blake3") for name, file in document["files"].items()}
    ours = {name: file.recorded.digest for name, file in engine.files.items()}
    names = sorted((theirs.keys() | ours.keys()) - {PROVENANCE, CHECKSUMS})
    different = [name for name in names if theirs.get(name) != ours.get(name)]
    if different:
        problem = f"{engine.place} is published already, with another {different[0]}"
        raise StageError(problem, "published versions never change; choose another --version")
    for name, file in sorted(document["files"].items()):
        if not folder.has(f"{engine.place}/{name}", file["bytes"]):
            problem = f"{engine.place}/{name} is missing or is not what was published"
            hint = f"choose another --version, or remove {engine.place} and publish it again"
            raise StageError(problem, hint)
    return True


def _write(folder: RemoteFolder, engine: EngineVersion) -> None:
    """Write the files of a version, last its document."""
    files: dict[str, dict[str, Any]] = {}
    for name, file in engine.files.items():
        sha256 = hashlib.sha256()
        folder.write(f"{engine.place}/{name}", _checked_chunks(file, sha256))
        size, blake3 = file.recorded.size, file.recorded.digest
        files[name] = {"bytes": size, "sha256": sha256.hexdigest(), "blake3": blake3}

    def write(name: str, content: bytes) -> None:
        folder.write(f"{engine.place}/{name}", [content])
        digest = hashlib.sha256(content).hexdigest()
        files[name] = {"bytes": len(content), "sha256": digest}

    write(PROVENANCE, _to_json(engine.provenance))
    sums = (f"{file['sha256']}  {name}\n" for name, file in sorted(files.items()))
    write(CHECKSUMS, "".join(sums).encode())
    names = {"model": engine.model, "engine": engine.engine, "version": engine.version}
    document = {"schema": SCHEMA, **names, "published": utc_now(), "files": files}
    folder.write(f"{engine.place}/{DOCUMENT}", [_to_json(document)])


def _checked_chunks(file: VersionFile, sha256: Any) -> Iterator[bytes]:
    """Yield the content of a file. Raises: StageError: it is not what was recorded."""
    from blake3 import blake3  # not on the path of a run without work

    digest, size = blake3(), 0
    with file.path.open("rb") as reader:
        while chunk := reader.read(_CHUNK_BYTES):
            digest.update(chunk)
            sha256.update(chunk)
            size += len(chunk)
            yield chunk
    if (digest.hexdigest(), size) != file.recorded:
        problem = f"{file.path} has changed since it was built"
        raise StageError(problem, "wait for other builds to end, and publish again")


def read_version(folder: RemoteFolder, place: str) -> dict[str, Any] | None:
    """Read the document of a version, None without one. Raises: StageError: it is unreadable."""
    path = f"{place}/{DOCUMENT}"
    try:
        with folder.open_to_read(path) as reader:
            content = reader.read(_MAX_DOCUMENT_BYTES)
    except FileNotFoundError:
        return None
    try:
        document = _Document.model_validate_json(content)
    except ValueError:
        hint = "choose another --version"
        raise StageError(f"{path} is damaged or of a newer buildsys", hint) from None
    return document.model_dump(exclude_none=True, by_alias=True)


class _File(BaseModel):
    size: int = Field(alias="bytes", ge=0, strict=True)
    sha256: str | None = None
    blake3: str | None = None


class _Document(BaseModel):
    """What is read of version.json."""

    published: str = ""
    files: dict[str, _File]


def _to_json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"
