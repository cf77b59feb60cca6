"""Published versions of engines: complete or absent, unchangeable, with checksums."""

import hashlib
import json
import resource
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sftp_server import ssh_server

from buildsys.deploy.versions import EngineVersion, VersionFile, list_versions, publish_version
from buildsys.errors import StageError
from buildsys.store.file_digests import hash_file
from buildsys.store.ledger import OutputFile
from buildsys.store.remote_folder import RemoteFolder, connect

CONTENTS = {"engine.onnx": b"graph" * 1000, "engine.json": b"{}", "reports/verify.json": b"[]"}


@pytest.fixture(params=["folder", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteFolder]:
    """A folder of this machine, and an object storage, which cannot rename."""
    place = connect(
        str(tmp_path / "engines [1]*")
        if request.param == "folder"
        else f"memory://{uuid.uuid4().hex}"
    )
    yield place
    place.remove("")


@pytest.fixture
def engine(tmp_path: Path) -> EngineVersion:
    return make_engine(tmp_path / "built")


def make_engine(built: Path, version: str = "1.0", **changes: bytes) -> EngineVersion:
    files = {}
    for name, content in {**CONTENTS, **changes}.items():
        path = built / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        found = hash_file(str(path))
        files[name] = VersionFile(path, OutputFile(found.digest, len(content)))
    digests = {name: file.recorded.digest for name, file in files.items()}
    return EngineVersion("net", "ort", version, files, {"targets": digests})


def names(folder: RemoteFolder) -> set[str]:
    return {path[len(folder.root) + 1 :] for path in folder.system.find(folder.root)}


def contents(folder: RemoteFolder) -> dict[str, bytes]:
    found = {}
    for name in names(folder):
        with folder.open_to_read(name) as reader:
            found[name] = reader.read()
    return found


def read(folder: RemoteFolder, name: str) -> bytes:
    with folder.open_to_read(f"net/ort/1.0/{name}") as reader:
        return bytes(reader.read())


def test_a_version_has_all_files_with_their_checksums(
    folder: RemoteFolder, engine: EngineVersion, tmp_path: Path
) -> None:
    assert publish_version(folder, engine)
    document = json.loads(read(folder, "version.json"))
    generated = {"provenance.json", "SHA256SUMS"}
    assert document["files"].keys() == CONTENTS.keys() | generated
    assert names(folder) == {f"net/ort/1.0/{name}" for name in [*document["files"], "version.json"]}
    for name, file in document["files"].items():
        content = read(folder, name)
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            file["bytes"],
            file["sha256"],
        )
        copy = tmp_path / "copy" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path / "copy", check=False)
    assert done.returncode == 0
    assert [one["version"] for one in list_versions(folder)] == ["1.0"]


def test_the_same_version_again_changes_nothing(
    folder: RemoteFolder, engine: EngineVersion
) -> None:
    publish_version(folder, engine)
    before = read(folder, "version.json")
    built_elsewhere = engine._replace(provenance={"commit": "another"})
    assert not publish_version(folder, built_elsewhere)
    assert read(folder, "version.json") == before


@pytest.mark.parametrize("name", ["engine.onnx", "reports/verify.json", "more.so"])
def test_a_version_with_other_files_is_refused(
    folder: RemoteFolder, engine: EngineVersion, tmp_path: Path, name: str
) -> None:
    publish_version(folder, engine)
    before = contents(folder)
    other = make_engine(tmp_path / "other", **{name: b"other"})
    with pytest.raises(StageError, match=rf"net/ort/1.0 is published already, with another {name}"):
        publish_version(folder, other)
    assert contents(folder) == before
    assert publish_version(folder, other._replace(version="1.1"))
    assert [one["version"] for one in list_versions(folder)] == ["1.0", "1.1"]


def test_a_version_with_an_altered_or_missing_file_is_not_unchanged(
    folder: RemoteFolder, engine: EngineVersion
) -> None:
    publish_version(folder, engine)
    place = f"{folder.root}/{engine.place}"
    with folder.system.open(f"{place}/engine.onnx", "wb") as stream:
        stream.write(b"other")
    with pytest.raises(StageError, match=r"engine\.onnx is missing or is not what was published"):
        publish_version(folder, engine)
    folder.system.rm(f"{place}/engine.onnx")
    with pytest.raises(StageError, match=r"choose another --version, or remove net/ort/1\.0 and "):
        publish_version(folder, engine)


@pytest.mark.parametrize("change", ["edited", "cut", "gone"])
def test_a_file_that_changed_since_the_build_is_not_published(
    folder: RemoteFolder, engine: EngineVersion, change: str
) -> None:
    path = engine.files["engine.onnx"].path
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(b"x" * (5000 if change == "edited" else 10))
    with pytest.raises((StageError, FileNotFoundError), match=r"engine\.onnx"):
        publish_version(folder, engine)
    assert list(list_versions(folder)) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("last", ["engine.json", "SHA256SUMS", "version.json"])
def test_an_interrupted_publication_is_no_version(
    folder: RemoteFolder,
    engine: EngineVersion,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    last: str,
) -> None:
    write = RemoteFolder._write

    def fail(place: RemoteFolder, target: str, *more: object, **options: object) -> None:
        if f"/{last}" in target:
            raise error
        write(place, target, *more, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "_write", fail)
        with pytest.raises(type(error)):
            publish_version(folder, engine)
    assert list(list_versions(folder)) == []
    assert publish_version(folder, engine)  # completes it
    assert len(list(list_versions(folder))) == 1


def test_of_two_engines_under_one_version_the_second_is_refused(
    folder: RemoteFolder, engine: EngineVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_engine(tmp_path / "other", **{"engine.onnx": b"other"})
    write = RemoteFolder._write
    refused: list[str] = []

    def meanwhile(place: RemoteFolder, target: str, *more: object, **options: object) -> None:
        if "/engine.json" in target and not refused:
            refused.append("")
            try:
                publish_version(folder, other)
            except StageError as error:
                refused.append(str(error))
        write(place, target, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteFolder, "_write", meanwhile)
    assert publish_version(folder, engine)
    assert "has files of another, unfinished publication" in refused[1]
    for name in CONTENTS:
        assert read(folder, name) == engine.files[name].path.read_bytes()


def test_a_full_disk_is_named_and_leaves_no_half_version(
    engine: EngineVersion, tmp_path: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            publish_version(connect(str(tmp_path / "full")), engine)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path for path in (tmp_path / "full").rglob("*") if path.is_file()] == []
    assert publish_version(connect(str(tmp_path / "full")), engine)


@pytest.mark.parametrize(
    "content", [b"", b"[" * 100_000, b'{"files": []}', b'{"files": {"a": {"bytes": -5}}}']
)
def test_a_damaged_version_is_an_error_and_does_not_hide_others(
    folder: RemoteFolder, engine: EngineVersion, content: bytes
) -> None:
    publish_version(folder, engine._replace(version="2.0"))
    folder.write("net/ort/1.0/version.json", [content])
    with pytest.raises(StageError, match=r"net/ort/1.0/version.json is damaged"):
        publish_version(folder, engine)
    damaged, whole = list_versions(folder)
    assert (damaged["version"], whole["version"]) == ("1.0", "2.0")
    assert "is damaged or of a newer buildsys" in damaged["problem"]


def test_a_version_on_an_sftp_server_is_complete_and_unchangeable(
    engine: EngineVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with ssh_server() as server:
        place = connect(server.url(tmp_path / "engines"), known_hosts=tmp_path / "known")
        assert publish_version(place, engine)
        assert not publish_version(place, engine)
        with pytest.raises(StageError, match="is published already, with another engine"):
            publish_version(place, make_engine(tmp_path / "other", **{"engine.onnx": b"other"}))
        assert [one["version"] for one in list_versions(place)] == ["1.0"]
    assert [path.name for path in (tmp_path / "engines/net/ort").iterdir()] == ["1.0"]


def test_no_folder_is_made_in_an_object_store(
    engine: EngineVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = connect(f"memory://{uuid.uuid4().hex}")
    # s3fs creates the bucket of a mistyped URL
    store = store._replace(has_folders=False)
    monkeypatch.setattr(store.system, "makedirs", lambda *_, **__: pytest.fail("made a folder"))
    assert publish_version(store, engine)
