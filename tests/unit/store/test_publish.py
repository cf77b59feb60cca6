from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from blake3 import blake3

import buildsys.store.file_digests as digest_module
import buildsys.store.publish as publish_module
from buildsys.errors import StageError
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import Ledger
from buildsys.store.publish import Background, Publisher
from buildsys.store.state_db import StateDb

RESULT = "m/export/export.json"


@pytest.fixture
def build(tmp_path: Path) -> Path:
    return tmp_path / "build"


@pytest.fixture
def publisher(
    build: Path, db: StateDb, background: Background, warnings_given: list[str]
) -> Publisher:
    return Publisher(build, DigestCache(db), Ledger(db), background, warnings_given.append)


def write(tree: Path, **files: bytes) -> None:
    for name, content in files.items():
        path = tree / "m" / "export" / name.replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def publish(publisher: Publisher, **files: bytes) -> dict[str, digest_module.FileDigest]:
    with publisher.staging("export:m") as tree:
        write(tree, **files)
        sealed = publisher.digest_outputs(tree)
        publisher.publish("export:m", tree, sealed, last=RESULT)
    return sealed


def test_everything_in_the_tree_is_published(publisher: Publisher, build: Path) -> None:
    sealed = publish(publisher, export_json=b"{}", model_onnx=b"model", worst_npy=b"tensor")
    assert sorted(sealed) == ["m/export/export.json", "m/export/model.onnx", "m/export/worst.npy"]
    assert (build / "m/export/model.onnx").read_bytes() == b"model"
    assert list((build / ".tmp").iterdir()) == []


def test_nothing_is_visible_before_publication(publisher: Publisher, build: Path) -> None:
    with publisher.staging("export:m") as tree:
        write(tree, model_onnx=b"half")
        publisher.digest_outputs(tree)
    assert not (build / "m").exists()


def test_the_result_file_comes_last(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[str] = []
    replace = Path.replace

    def record(self: Path, target: Path) -> Path:
        renamed.append(Path(target).name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", record)
    publish(publisher, export_json=b"{}", model_onnx=b"model", zzz=b"")
    assert renamed == ["model.onnx", "zzz", "export.json"]


def test_a_reader_never_sees_a_partial_file(publisher: Publisher, build: Path) -> None:
    contents = [bytes([value]) * 300_000 for value in (65, 66)]
    publish(publisher, model_onnx=contents[0])
    stop, seen = threading.Event(), set()

    def read() -> None:
        while not stop.is_set():
            seen.add((build / "m/export/model.onnx").read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(20):
        publish(publisher, model_onnx=contents[turn % 2])
    stop.set()
    reader.join()
    assert seen <= set(contents)


def test_a_large_output_is_read_once(
    publisher: Publisher, build: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    with publisher.staging("export:m") as tree:
        write(tree, model_onnx=b"x" * 1000)
        sealed = publisher.digest_outputs(tree)
        publisher.publish("export:m", tree, sealed, last=RESULT)
    monkeypatch.setattr(
        digest_module, "hash_file", lambda path: pytest.fail(f"{path} is read again")
    )
    path = str(build / "m/export/model.onnx")
    assert DigestCache(db).digest(path).digest == sealed["m/export/model.onnx"].digest


def test_a_file_written_right_after_publishing_is_noticed(
    publisher: Publisher, build: Path, db: StateDb
) -> None:
    sealed = publish(publisher, model_onnx=b"one")
    (build / "m/export/model.onnx").write_bytes(b"two")
    assert (
        DigestCache(db).digest(str(build / "m/export/model.onnx")).digest
        != sealed["m/export/model.onnx"].digest
    )


def test_a_full_disk_is_a_clear_error_and_harms_nothing(
    publisher: Publisher, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(publisher, export_json=b"{}", model_onnx=b"good")

    def full(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StageError, match=r"No space left on device; free some space"):
        publish(publisher, export_json=b"{}", model_onnx=b"new")
    assert (build / "m/export/model.onnx").read_bytes() == b"good"
    assert list((build / ".tmp").iterdir()) == []


def test_a_file_is_read_again_after_a_power_cut(
    publisher: Publisher, build: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(publisher, model_onnx=b"model")
    path = build / "m/export/model.onnx"
    times = path.stat()
    with path.open("r+b") as file:  # the file system keeps the size and has lost the content
        file.write(bytes(5))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    db.write([("UPDATE file_digests SET ctime_ns = ?", (path.stat().st_ctime_ns,))])
    assert (
        DigestCache(db).digest(str(path)).digest == blake3(b"model").hexdigest()
    )  # not before the machine restarts
    monkeypatch.setattr(digest_module, "boot_id", lambda: "the next one")
    assert DigestCache(db).digest(str(path)).digest == blake3(bytes(5)).hexdigest()


def test_a_failed_flush_warns_and_drops_the_digest(
    publisher: Publisher, build: Path, db: StateDb, background: Background,
    monkeypatch: pytest.MonkeyPatch, warnings_given: list[str],
) -> None:  # fmt: skip
    def broken(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(publish_module, "fsync", broken)
    publish(publisher, model_onnx=b"model")
    background.close()
    path = build / "m/export/model.onnx"
    assert warnings_given == [
        f"cannot write {path} to disk: Input/output error; the next run reads it again"
    ]
    assert db.read("SELECT * FROM file_digests") == []


def test_a_folder_in_the_way_is_a_clear_error(publisher: Publisher, build: Path) -> None:
    (build / "m/export/model.onnx/sub").mkdir(parents=True)
    with pytest.raises(StageError, match=r"cannot publish .*model\.onnx"):
        publish(publisher, model_onnx=b"x")


def test_only_folders_of_dead_processes_are_removed(publisher: Publisher, build: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from buildsys.store.publish import Publisher\n"
        "with Publisher(Path(sys.argv[1]), None, None, None).staging('export:dead') as tree:\n"
        "    (tree / 'half').write_text('x'); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, build], check=False).returncode == -9
    (build / ".tmp" / "just-made").mkdir()  # by a process that has not locked it yet
    with publisher.staging("export:m") as tree:
        assert len(list((build / ".tmp").iterdir())) == 3
        publisher.remove_abandoned()
        assert sorted(path.name for path in (build / ".tmp").iterdir()) == sorted(
            [tree.parent.name, "just-made"]
        )


def test_symbolic_links_are_not_published(publisher: Publisher) -> None:
    with publisher.staging("export:m") as tree:
        write(tree, model_onnx=b"x")
        (tree / "m/export/link").symlink_to(tree / "m/export/model.onnx")
        assert list(publisher.digest_outputs(tree)) == ["m/export/model.onnx"]
