import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from buildsys.errors import StageError
from buildsys.store import garbage_collection
from buildsys.store.file_digests import FileDigest
from buildsys.store.garbage_collection import Collection, collect, usage, verify
from buildsys.store.ledger import ActionRecord, OutputFile
from buildsys.store.object_store import DamagedError, Store
from buildsys.system.files import open_lock, try_lock


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def kept(store: Store, folder: Path, content: bytes) -> OutputFile:
    source = folder / "source"
    source.write_bytes(content)
    file = OutputFile(blake3(content).hexdigest(), len(content))
    assert store.put(source, file)
    return file


def record(key: str, target: str = "export:m", **outputs: OutputFile | None) -> ActionRecord:
    named = {f"m/export/{name}": file for name, file in outputs.items()}
    return ActionRecord(
        target,
        key * 64,
        {"config:x": "1"},
        named,
        "passed",
        "2026-01-02T03:04:05Z",
        1.0,
        figures={"n": 1},
    )


@pytest.mark.parametrize("size", [0, 1, (4 << 20) - 1, 4 << 20, (4 << 20) + 7])
def test_an_object_is_stored_and_fetched(store: Store, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    file = kept(store, tmp_path, content)
    assert store.holds(file)
    store.fetch(file, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content
    assert list((store.folder / "tmp").iterdir()) == []


def test_stored_files_are_never_linked(store: Store, tmp_path: Path) -> None:
    file = kept(store, tmp_path, b"content")
    store.fetch(file, tmp_path / "out")
    assert store.object_path(file.digest).stat().st_nlink == 1
    for path in (tmp_path / "source", tmp_path / "out"):
        with path.open("r+b") as stream:
            stream.write(b"edited!")
    assert store.object_path(file.digest).read_bytes() == b"content"
    assert store.object_path(file.digest).stat().st_mode & 0o222 == 0


def test_a_changed_file_is_not_stored(store: Store, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"other")
    file = OutputFile(blake3(b"content").hexdigest(), 7)
    assert not store.put(tmp_path / "source", file)
    assert not store.put(tmp_path / "gone", file)
    assert not store.holds(file)


@pytest.mark.parametrize("damage", [b"", b"conten", b"contenT"])
def test_a_damaged_object_is_quarantined(store: Store, tmp_path: Path, damage: bytes) -> None:
    file = kept(store, tmp_path, b"content")
    path = store.object_path(file.digest)
    path.chmod(0o644)
    path.write_bytes(damage)
    with pytest.raises(DamagedError, match="does not match its digest"):
        store.fetch(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not store.holds(file)
    assert [found.read_bytes() for found in (store.folder / "quarantine").iterdir()] == [damage]
    kept(store, tmp_path, b"content")
    store.fetch(file, tmp_path / "out")


def test_a_record_survives_a_round_trip(store: Store) -> None:
    given = record("a", model=OutputFile("d" * 64, 5), data=None)
    store.write_action(given)
    assert store.read_action("export:m", "a" * 64) == given
    assert store.read_action("export:m", "b" * 64) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-20],
        lambda body: b"",
        lambda body: body.replace(b"passed", b"failed"),
        lambda body: b"\x00" * len(body),
    ],
)
def test_a_damaged_record_goes_into_quarantine(store: Store, damage: object) -> None:
    store.write_action(record("a"))
    path = store.action_path("a" * 64)
    path.chmod(0o644)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DamagedError, match="put into quarantine"):
        store.read_action("export:m", "a" * 64)
    assert store.read_action("export:m", "a" * 64) is None


def keep(keys: str) -> Callable[[Sequence[ActionRecord]], set[tuple[str, str]]]:
    """Return a choice of the records to keep, by the first letter of their keys."""
    return lambda records: {(r.target, r.key) for r in records if keys == "*" or r.key[0] in keys}


def forged(store: Store, **fields: object) -> None:
    store.write_action(record("a"))
    path = store.action_path("a" * 64)
    body = json.dumps({**json.loads(path.read_bytes().partition(b"\n")[2]), **fields}).encode()
    path.chmod(0o644)
    path.write_bytes(blake3(body).hexdigest().encode() + b"\n" + body)


def test_a_record_of_a_newer_buildsys_is_left_alone(store: Store) -> None:
    forged(store, schema=99, something="new")
    with pytest.raises(
        StageError,
        match="was written by a newer buildsys; update buildsys here, or use another store",
    ):
        store.read_action("export:m", "a" * 64)
    assert store.action_path("a" * 64).exists()
    assert verify(store, lambda done, total: None) == []


def test_a_full_disk_leaves_no_partial_copy(store: Store, tmp_path: Path) -> None:
    """A limit on file sizes makes the same call fail."""
    file = kept(store, tmp_path, os.urandom(100_000))
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from buildsys.store.ledger import OutputFile\n"
        "from buildsys.store.object_store import Store\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
        "file = OutputFile(sys.argv[2], int(sys.argv[3]))\n"
        "try:\n    Store(Path(sys.argv[1])).fetch(file, Path(sys.argv[4]))\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    words = [sys.executable, "-c", code, store.folder, *map(str, file), tmp_path / "copy"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("File too large\n", "")
    assert not (tmp_path / "copy").exists()


def test_an_object_appears_by_a_rename(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    file = OutputFile(blake3(b"content").hexdigest(), 7)
    (tmp_path / "source").write_bytes(b"content")
    for put in (
        lambda: store.put(tmp_path / "source", file),
        lambda: store.add(file, [b"con", b"tent"]),
        lambda: store.write_action(record("a")),
    ):
        with pytest.raises(KeyboardInterrupt):
            put()
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []


def test_a_killed_process_leaves_no_partial_object(store: Store, tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from buildsys.store.object_store import Store\n"
        "from buildsys.store.ledger import OutputFile\n"
        "def dying():\n    yield b'half'\n    os.kill(os.getpid(), 9)\n"
        "Store(Path(sys.argv[1])).add(OutputFile('d' * 64, 9), dying())\n"
    )
    assert subprocess.run([sys.executable, "-c", code, store.folder], check=False).returncode == -9
    (left,) = (store.folder / "tmp").iterdir()
    assert list(store.folder.glob("objects/??/*")) == []
    os.utime(left, (0, 0))
    collected(store, "*")
    assert not left.exists()


def test_storing_an_object_again_marks_it_as_used(store: Store, tmp_path: Path) -> None:
    file = kept(store, tmp_path, b"content")
    path = store.object_path(file.digest)
    os.utime(path, (1000, 1000))
    assert kept(store, tmp_path, b"content") == file
    assert path.stat().st_mtime > 1000


def test_chunks_are_stored_only_if_they_match(store: Store) -> None:
    file = OutputFile(blake3(b"content").hexdigest(), 7)
    assert not store.add(file, [b"c0ntent"])
    assert not store.add(file, [b"conten"])
    assert not store.add(file, [b"content", b"more"])
    assert not store.add(OutputFile(file.digest, 8), [b"content"])
    assert not store.holds(file)
    assert store.add(file, [b"con", b"", b"tent"])
    assert store.object_path(file.digest).read_bytes() == b"content"
    assert list((store.folder / "tmp").iterdir()) == []


def test_a_record_that_cannot_be_read_is_an_error(store: Store) -> None:
    path = store.action_path("a" * 64)
    path.mkdir(parents=True)
    with pytest.raises(StageError, match=f"cannot read {path}: Is a directory"):
        store.read_action("export:m", "a" * 64)


def test_additions_share_the_lock_that_a_removal_needs_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "not/yet/there")
    with store.lock(shared=True):
        other = open_lock(store.folder / "lock")
        assert try_lock(other, shared=True)
        assert not try_lock(other)
        os.close(other)
    with store.lock(shared=False):
        other = open_lock(store.folder / "lock")
        assert not try_lock(other, shared=True)
        os.close(other)


def test_a_file_in_quarantine_has_the_time_in_its_name(store: Store, tmp_path: Path) -> None:
    store.folder.mkdir()
    for _ in range(2):
        (tmp_path / "bad").write_text("x")
        store.quarantine(tmp_path / "bad")
        assert not (tmp_path / "bad").exists()
    names = {path.name for path in (store.folder / "quarantine").iterdir()}
    assert all(re.fullmatch(r"bad\.\d{8}T\d{6}", name) for name in names)
    store.quarantine(tmp_path / "gone")  # another process took it


def test_records_are_listed_with_their_last_use(store: Store) -> None:
    for number, key in enumerate("bc"):
        store.write_action(record(key))
        os.utime(store.action_path(key * 64), (1000 + number, 1000 + number))
    store.action_path("a" * 64).parent.mkdir()
    store.action_path("a" * 64).write_bytes(b"damaged")
    found = [(action.path, action.used, action.record.key) for action in store.actions()]
    assert found == [
        (store.action_path(key * 64), 1000.0 + number, key * 64) for number, key in enumerate("bc")
    ]


# --- `buildsys cache` ---


def filled(store: Store, tmp_path: Path) -> dict[str, OutputFile]:
    """Return files: two exports with shared weights, an engine, a lost object."""
    files = {
        name: kept(store, tmp_path, name.encode() * 100)
        for name in ("weights", "one", "two", "engine", "lost")
    }
    store.write_action(record("a", model=files["one"], data=files["weights"]))
    store.write_action(record("b", model=files["two"], data=files["weights"]))
    store.write_action(record("c", "engine:m:e", engine=files["engine"]))
    for number, key in enumerate("abc"):
        os.utime(store.action_path(key * 64), (1000 + number, 1000 + number))
    return files


def test_usage_counts_shared_content_once(store: Store, tmp_path: Path) -> None:
    filled(store, tmp_path)
    found = {row.stage: (row.actions, row.bytes) for row in usage(store)}
    assert found == {"export": (2, 700 + 300 + 300), "engine": (1, 600), "": (0, 400)}


def test_verify_finds_damaged_objects(store: Store, tmp_path: Path) -> None:
    files = filled(store, tmp_path)
    assert verify(store, lambda done, total: None) == []
    path = store.object_path(files["two"].digest)
    path.chmod(0o644)
    path.write_bytes(b"x")
    (problem,) = verify(store, lambda done, total: None)
    assert problem == f"{path} does not match its digest"
    assert verify(store, lambda done, total: None) == []
    assert len(list((store.folder / "quarantine").iterdir())) == 1


def test_verify_leaves_what_others_remove_and_put_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = filled(store, tmp_path)
    path = store.object_path(files["two"].digest)
    content, read = path.read_bytes(), garbage_collection.hash_file

    def read_between(name: str) -> FileDigest:
        """Remove the object before the first read, and put it there again after it."""
        if name == str(path):
            monkeypatch.setattr(garbage_collection, "hash_file", read)
            path.unlink()
            try:
                return read(name)
            finally:
                path.write_bytes(content)
        return read(name)

    monkeypatch.setattr(garbage_collection, "hash_file", read_between)
    assert verify(store, lambda done, total: None) == []
    assert not (store.folder / "quarantine").exists()


def test_what_is_not_a_file_is_never_opened(store: Store, tmp_path: Path) -> None:
    empty = OutputFile(blake3(b"").hexdigest(), 0)
    path = store.object_path(empty.digest)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert not store.holds(empty)
    with pytest.raises(DamagedError):
        store.fetch(empty, tmp_path / "copy")
    os.mkfifo(path)
    (problem,) = verify(store, lambda done, total: None)
    assert problem == f"{path} cannot be read: {path} is not a regular file; remove it"


def collected(store: Store, reached: str, **options: Any) -> Collection:
    """Collect all but the records of ``reached``."""
    limits = {"unused_for_s": None, "max_bytes": None, "dry_run": False, **options}
    return collect(store, reached=keep(reached), **limits)


def names(store: Store) -> set[str]:
    return {action.record.key[0] for action in store.actions()}


def test_collect_keeps_reached_records(store: Store, tmp_path: Path) -> None:
    files = filled(store, tmp_path)
    done = collected(store, "b")
    assert names(store) == {"b"}
    left = {path.name for path in store.folder.glob("objects/??/*")}
    assert left == {files["two"].digest, files["weights"].digest}
    assert (done.actions, done.objects, done.bytes) == (
        ("engine:m:e", "export:m"),
        3,
        300 + 600 + 400,
    )


def test_a_dry_run_returns_the_same_and_removes_nothing(store: Store, tmp_path: Path) -> None:
    filled(store, tmp_path)
    before = sorted(store.folder.rglob("*"))
    found = [collected(store, "", dry_run=dry) for dry in (True, False)]
    assert found[0] == found[1]
    assert len(before) > len(sorted(store.folder.rglob("*")))


def test_age_counts_from_the_last_use(store: Store, tmp_path: Path) -> None:
    filled(store, tmp_path)
    os.utime(store.action_path("a" * 64))
    collected(store, "b", unused_for_s=3600.0)
    assert names(store) == {"a", "b"}


def test_a_size_limit_removes_the_least_recently_used_first(store: Store, tmp_path: Path) -> None:
    filled(store, tmp_path)
    done = collected(store, "", max_bytes=1700)
    assert names(store) == {"b", "c"}
    assert done.kept_bytes == 1600
    collected(store, "b", max_bytes=0)
    assert names(store) == {"b"}  # what is reached stays, whatever its size


def test_unreached_records_go_first_and_older_ones_before_newer(
    store: Store, tmp_path: Path
) -> None:
    file = kept(store, tmp_path, b"x" * 100)
    for number, key in enumerate("abcd"):
        found = kept(store, tmp_path, key.encode() * 100)
        started = f"2026-01-0{9 - number}T00:00:00Z"
        store.write_action(replace(record(key, model=found, data=file), started=started))
        os.utime(store.action_path(key * 64), (1000, 1000))  # a coarse clock
    for limit, left in ((400, "abc"), (300, "ab"), (200, "a"), (0, "a")):
        collected(store, "a", max_bytes=limit)
        assert names(store) == set(left)


def test_nothing_is_collected_during_an_addition(store: Store, tmp_path: Path) -> None:
    filled(store, tmp_path)
    order: list[str] = []

    def gather() -> None:
        collected(store, "*")
        order.append("collected")

    with store.lock(shared=True):
        thread = threading.Thread(target=gather)
        thread.start()
        file = kept(store, tmp_path, b"new")
        thread.join(0.3)
        store.write_action(record("d", model=file))
        order.append("added")
    thread.join(30)
    assert order == ["added", "collected"]
    assert store.holds(file)
