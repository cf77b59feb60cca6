import os
import time
from pathlib import Path

import pytest
from blake3 import blake3

import buildsys.store.file_digests as digest_module
from buildsys.errors import StageError
from buildsys.store.file_digests import DigestCache, hash_file
from buildsys.store.state_db import StateDb
from buildsys.system import files
from buildsys.system.files import SETTLE_NS


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files read."""
    read: list[str] = []

    def counting(path: str) -> digest_module.FileDigest:
        read.append(Path(path).name)
        return hash_file(path)

    monkeypatch.setattr(digest_module, "hash_file", counting)
    return read


def settled_file(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    time.sleep(2 * SETTLE_NS / 1e9)
    return str(path)


def sha(content: bytes) -> str:
    return blake3(content).hexdigest()


@pytest.mark.parametrize(
    "size", [0, 1, (1 << 18) - 1, 1 << 18, (1 << 21) + 3, 8 << 20, (9 << 20) + 1]
)
def test_the_digest_is_blake3_of_the_content(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "f").write_bytes(content)
    assert hash_file(str(tmp_path / "f")).digest == sha(content)


def test_a_settled_file_is_read_once(db: StateDb, tmp_path: Path, reads: list[str]) -> None:
    path = settled_file(tmp_path / "f", b"x")
    cache = DigestCache(db)
    assert [cache.digest(path).digest for _ in range(3)] == [sha(b"x")] * 3
    assert DigestCache(db).digests([path])[path].digest == sha(b"x")  # what the next process does
    assert reads == ["f"]


def test_a_file_just_written_is_read_again(
    db: StateDb, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SETTLE_NS", 3600 * 10**9)  # however long this test takes
    path = tmp_path / "f"
    path.write_bytes(b"x")
    cache = DigestCache(db)
    cache.digest(str(path))
    cache.digest(str(path))
    assert reads == ["f", "f"]


def test_new_content_under_the_old_modification_time_is_seen(db: StateDb, tmp_path: Path) -> None:
    path = settled_file(tmp_path / "f", b"old")
    cache = DigestCache(db)
    cache.digest(path)
    times = Path(path).stat()
    Path(path).write_bytes(b"new")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert cache.digest(path).digest == sha(b"new")


def test_a_replaced_file_of_the_same_size_is_seen(db: StateDb, tmp_path: Path) -> None:
    path = settled_file(tmp_path / "f", b"old")
    cache = DigestCache(db)
    cache.digest(path)
    settled_file(tmp_path / "g", b"new")
    times = Path(path).stat()
    os.utime(tmp_path / "g", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "g").replace(path)
    assert cache.digest(path).digest == sha(b"new")


def test_a_file_read_by_another_process_is_not_read_again(
    db: StateDb, tmp_path: Path, reads: list[str]
) -> None:
    path = settled_file(tmp_path / "f", b"x")
    first, second = DigestCache(db), DigestCache(StateDb(db.path))
    second.digest(str(tmp_path / "not-there"))
    second.digests([])  # has loaded the cache before the first one reads the file
    first.digest(path)
    second.digest(path)
    assert reads == ["f"]


@pytest.mark.parametrize("age_s", [1, 3600])
def test_a_digest_from_before_a_restart_is_not_used(
    db: StateDb, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch, age_s: int
) -> None:
    path = settled_file(tmp_path / "f", b"x")
    long_ago_ns = time.time_ns() - age_s * 10**9
    os.utime(path, ns=(long_ago_ns, long_ago_ns))
    time.sleep(2 * SETTLE_NS / 1e9)
    DigestCache(db).digest(path)
    monkeypatch.setattr(digest_module, "boot_id", lambda: "the next one")
    assert DigestCache(db).digests([path])[path].digest == sha(b"x")
    assert reads == ["f", "f"]


def test_a_path_below_a_file_is_absent(db: StateDb, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    assert DigestCache(db).digest(str(tmp_path / "f" / "g")) is None


def test_a_folder_is_an_error_that_names_it(db: StateDb, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="is a folder where a file is expected"):
        DigestCache(db).digest(str(tmp_path))


def test_a_file_that_keeps_changing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")

    def write_and_hash(*, max_threads: int) -> blake3:
        path.write_bytes(path.read_bytes() + b"x")
        return blake3(max_threads=max_threads)

    monkeypatch.setattr("blake3.blake3", write_and_hash)
    with pytest.raises(StageError, match="keeps changing"):
        hash_file(str(path))


def test_a_fifo_is_an_error_and_not_read(db: StateDb, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    with pytest.raises(StageError, match="f is not a regular file"):
        DigestCache(db).digest(str(tmp_path / "f"))


def test_a_file_of_another_size_is_not_read(db: StateDb, tmp_path: Path, reads: list[str]) -> None:
    paths = [settled_file(tmp_path / name, b"xx") for name in "fgh"]
    sizes = dict(zip(paths, (2, 1, -1), strict=True))
    found = DigestCache(db).digests(paths, sizes)
    assert [digest and digest.digest for digest in found.values()] == [sha(b"xx"), "", ""]
    assert reads == ["f"]
    assert DigestCache(db).digests(paths)[paths[1]].digest == sha(b"xx")
