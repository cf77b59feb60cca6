import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from blake3 import blake3

import buildsys.store.file_digests as digest_module
import buildsys.store.publish as publish_module
from buildsys.errors import StageError
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import Ledger
from buildsys.store.publish import Publisher
from buildsys.store.state_db import StateDb

RESULT = "m/export/export.json"


@pytest.fixture
def build(tmp_path: Path) -> Path:
    return tmp_path / "build"


@pytest.fixture
def publisher(build: Path, db: StateDb) -> Publisher:
    return Publisher(build, DigestCache(db), Ledger(db))


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


def test_the_result_file_comes_last(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[str] = []
    replace = os.replace

    def record(source: str, target: str, **folders: int) -> None:
        renamed.append(target)
        replace(source, target, **folders)

    monkeypatch.setattr(os, "replace", record)
    publish(publisher, export_json=b"{}", model_onnx=b"model", zzz=b"")
    assert renamed == ["model.onnx", "zzz", "export.json"]


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


def test_a_folder_in_the_way_is_a_clear_error(publisher: Publisher, build: Path) -> None:
    (build / "m/export/model.onnx/sub").mkdir(parents=True)
    with pytest.raises(StageError, match=r"cannot publish .*model\.onnx"):
        publish(publisher, model_onnx=b"x")


def test_only_folders_of_dead_processes_are_removed(
    publisher: Publisher, build: Path, db: StateDb
) -> None:
    code = (
        "import os, sys; from pathlib import Path; from buildsys.store.publish import Publisher\n"
        "with Publisher(Path(sys.argv[1]), None, None).staging('export:dead') as tree:\n"
        "    (tree / 'half').write_text('x'); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, build], check=False).returncode == -9
    (build / ".tmp/foreign").mkdir()
    with publisher.staging("export:m"):
        Publisher(build, DigestCache(db), Ledger(db)).remove_abandoned()
        assert len(list((build / ".tmp").iterdir())) == 3, "another process has a folder"
    publisher.remove_abandoned()
    assert [path.name for path in (build / ".tmp").iterdir()] == ["foreign"]
    (build / ".tmp/more").mkdir()
    publisher.remove_abandoned()
    assert (build / ".tmp/more").is_dir(), "once per run"


def test_nothing_is_removed_or_published_through_a_link(publisher: Publisher, build: Path) -> None:
    """A program that ran in the temporary folder may have left links anywhere."""
    foreign = build.parent / "foreign"
    (foreign / "export").mkdir(parents=True)
    (foreign / "export/model.onnx").write_bytes(b"precious")
    build.mkdir()
    (build / "m").symlink_to(foreign)
    with pytest.raises(StageError, match="/build/m is a link"):
        publish(publisher, model_onnx=b"x")
    (build / "m").unlink()
    with publisher.staging("export:m") as tree:
        tree.rename(build / "gone")
        tree.symlink_to(foreign)
    (build / ".tmp").rename(build / "moved")
    (build / ".tmp").symlink_to(foreign)
    publisher.remove_abandoned()
    with pytest.raises(StageError, match="cannot make a temporary folder"):
        publish(publisher, model_onnx=b"x")
    build.rename(build.with_name("gone"))
    build.symlink_to(foreign)
    with pytest.raises(StageError, match=r"/build is a link, .* remove it, or name its folder in"):
        publish(publisher, model_onnx=b"x")
    assert [path.name for path in foreign.rglob("*") if path.is_file()] == ["model.onnx"]
    assert (foreign / "export/model.onnx").read_bytes() == b"precious"


@pytest.mark.parametrize("place", ["", "m", "m/export", ".tmp/{tree}", ".tmp/{tree}/m/export"])
def test_a_link_made_after_the_check_leads_nowhere(
    publisher: Publisher, build: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The program of another target runs while this one is published."""
    publish(publisher, model_onnx=b"one", old_log=b"one")
    foreign = build.parent / "foreign"
    for name in ("m/export", "export"):
        (foreign / name).mkdir(parents=True)
        for file in ("model.onnx", "old.log"):
            (foreign / name / file).write_bytes(b"precious")
    (foreign / "model.onnx").write_bytes(b"precious")
    paths = sorted(foreign.rglob("*"))

    def attack(*_: object) -> None:
        folder = build / place.format(tree=tree.name)
        folder.rename(build.parent / "gone")
        folder.symlink_to(foreign)

    with publisher.staging("export:m") as tree:
        write(tree, model_onnx=b"two")
        sealed = publisher.digest_outputs(tree)
        monkeypatch.setattr(publish_module, "refuse_links", attack)
        with pytest.raises(StageError, match=r"cannot (remove|publish) .*: Not a directory"):
            publisher.publish("export:m", tree, sealed, last=RESULT)
    assert sorted(foreign.rglob("*")) == paths
    assert {path.read_bytes() for path in paths if path.is_file()} == {b"precious"}


def test_symbolic_links_are_not_published(publisher: Publisher) -> None:
    with publisher.staging("export:m") as tree:
        write(tree, model_onnx=b"x")
        (tree / "m/export/link").symlink_to(tree / "m/export/model.onnx")
        assert list(publisher.digest_outputs(tree)) == ["m/export/model.onnx"]


def test_a_temporary_folder_is_named_like_its_target(publisher: Publisher, build: Path) -> None:
    with publisher.staging("engine:m:a/b") as tree:
        assert tree.is_dir()
        assert tree.name.startswith("engine@m@a%b-")
        assert tree.parent == build / ".tmp"


def test_known_digests_are_not_computed(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    hash_file = publish_module.hash_file

    def record(path: str) -> digest_module.FileDigest:
        read.append(Path(path).name)
        return hash_file(path)

    monkeypatch.setattr(publish_module, "hash_file", record)
    with publisher.staging("export:m") as tree:
        write(tree, model_onnx=b"model", export_json=b"{}")
        found = publisher.digest_outputs(tree, {"m/export/model.onnx": "k" * 64})
        size = found["m/export/model.onnx"].stamp.size
    assert read == ["export.json"]
    assert {name: each.digest for name, each in found.items()} == {
        "m/export/export.json": blake3(b"{}").hexdigest(),
        "m/export/model.onnx": "k" * 64,
    }
    assert size == 5


def test_only_outputs_and_kept_files_remain(publisher: Publisher, build: Path, db: StateDb) -> None:
    publish(publisher, export_json=b"1", model_onnx=b"1", old_log=b"1")
    (build / "m/export/foreign.txt").write_text("not ours")
    (build / "m/export/added.bin").write_text("by hand")
    with publisher.staging("export:m") as tree:
        write(tree, export_json=b"2")
        publisher.publish(
            "export:m",
            tree,
            publisher.digest_outputs(tree),
            last=RESULT,
            optional=["m/export/added.bin", "m/export/never.bin"],
        )
    left = {path.name: path.read_text() for path in (build / "m/export").iterdir()}
    assert left == {"export.json": "2", "foreign.txt": "not ours"}
    assert RESULT in Ledger(db).owned("export:m")


@pytest.mark.parametrize(("blocks", "note"), [(255, " has 1020 KiB left"), (256, "")])
def test_a_disk_that_is_almost_full_is_noted(
    publisher: Publisher, build: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, note: str
) -> None:
    disk = SimpleNamespace(f_bavail=blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", {build: disk}.__getitem__)
    assert publisher.low_disk_note() == (f"the disk of {build}{note}" if note else "")


@pytest.mark.parametrize(
    ("number", "problem", "hint"),
    [
        (errno.ENOSPC, "No space left on device", "free some space"),
        (errno.EDQUOT, "Disk quota exceeded", "free some space"),
        (errno.EACCES, "Permission denied", "check the permissions of the build folder"),
        (None, "Input/output error", ""),
    ],
)
def test_a_full_disk_and_missing_rights_have_a_remedy_and_harm_nothing(
    publisher: Publisher, build: Path, monkeypatch: pytest.MonkeyPatch, number: int | None,
    problem: str, hint: str,
) -> None:  # fmt: skip
    publish(publisher, export_json=b"{}", model_onnx=b"good")

    def fail(*_: object, **folders: int) -> None:
        raise OSError(number, "x") if number else OSError("x")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StageError, match=problem) as caught:
        publish(publisher, model_onnx=b"x")
    assert caught.value.hint.startswith(hint)
    assert bool(caught.value.hint) == bool(hint)
    assert (build / "m/export/model.onnx").read_bytes() == b"good"
    assert list((build / ".tmp").iterdir()) == []


def test_a_file_written_after_its_digest_is_read_again(
    publisher: Publisher, build: Path, db: StateDb
) -> None:
    with publisher.staging("export:m") as tree:
        write(tree, model_onnx=b"one")
        sealed = publisher.digest_outputs(tree)
        write(tree, model_onnx=b"two")
        long_ago = time.time() - 3600
        os.utime(tree / "m/export/model.onnx", (long_ago, long_ago))
        publisher.publish("export:m", tree, sealed, last=RESULT)
    found = DigestCache(db).digest(str(build / "m/export/model.onnx"))
    assert found.digest == blake3(b"two").hexdigest()


@pytest.mark.parametrize("age_s", [-3600, 3600])
def test_only_digests_of_settled_files_are_kept(
    publisher: Publisher, build: Path, db: StateDb, age_s: float
) -> None:
    with publisher.staging("export:m") as tree:
        write(tree, model_onnx=b"one")
        path, written = tree / "m/export/model.onnx", time.time() - age_s
        os.utime(path, (written, written))
        digests = {"m/export/model.onnx": digest_module.hash_file(str(path))}
        publisher.publish("export:m", tree, digests, last=RESULT)
    kept = [(str(build / "m/export/model.onnx"),)] if age_s > 0 else []
    assert db.read("SELECT path FROM file_digests") == kept
