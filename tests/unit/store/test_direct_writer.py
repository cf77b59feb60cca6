"""Copies that go past the page cache: the same bytes, on every file system and at every size."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from buildsys.store import direct_writer, object_store
from buildsys.store.direct_writer import DirectWriter
from buildsys.store.object_store import copy_file


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[int]:
    """A file whose file system takes direct writes."""
    descriptor = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_DIRECT)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
    except OSError:
        os.close(descriptor)
        pytest.skip("the file system of temporary files has no direct writes")
    yield descriptor
    os.close(descriptor)


def page(size: int) -> memoryview:
    """Return memory that begins on a page."""
    memory = mmap.mmap(-1, size)
    memory.write(os.urandom(size))
    return memoryview(memory)


@pytest.mark.parametrize("folder", ["/dev/shm", ""], ids=["in memory", "on disk"])
@pytest.mark.parametrize("size", [0, 1, 4095, 16384, 16385, 3 * 16384, 3 * 16384 + 4097, 100_000])
def test_copies_of_every_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, folder: str
) -> None:
    monkeypatch.setattr(object_store, "_CHUNK_BYTES", 16384)
    content = os.urandom(size)
    (tmp_path / "source").write_bytes(content)
    copy = Path(folder or tmp_path) / f"{os.getpid()}.copy"
    try:
        assert copy_file(tmp_path / "source", copy, direct=True) == blake3(content).hexdigest()
        assert copy.read_bytes() == content
    finally:
        copy.unlink()


def test_a_disk_that_takes_no_more_is_the_error_of_the_disk(tmp_path: Path) -> None:
    """A limit of this process alone stands for a full disk: the error comes from the same call."""
    code = (
        "import resource, sys; from pathlib import Path; from buildsys.store import object_store as cas\n"
        "cas._CHUNK_BYTES = 16384\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
        "try:\n    cas.copy_file(Path(sys.argv[1]), Path(sys.argv[2]), direct=True)\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    (tmp_path / "source").write_bytes(os.urandom(100_000))
    words = [sys.executable, "-c", code, tmp_path / "source", tmp_path / "copy"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("File too large\n", "")
    assert not (tmp_path / "copy").exists()


def test_whole_blocks_are_written_directly_and_what_is_left_is_not(target: int) -> None:
    writer, content = DirectWriter(target), page(3 * 4096 + 5)
    assert writer.write(content) == 3 * 4096
    assert is_direct(target)
    assert writer.write(content[3 * 4096 :]) == 5
    assert not is_direct(target)
    assert os.pread(target, 20000, 0) == content


def test_memory_that_no_disk_takes_directly_is_written_all_the_same(target: int) -> None:
    writer, content = DirectWriter(target), page(2 * 4096)
    assert writer.write(content[1 : 4096 + 1]) == 4096  # begins on no block
    assert os.pread(target, 20000, 0) == content[1 : 4096 + 1]


def test_a_disk_that_does_not_keep_up_is_not_waited_for(
    target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_writer, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(direct_writer, "_SLOWEST", 1e15)
    writer, content = DirectWriter(target), page(2 * 4096)
    assert writer.write(content[:4096]) == 4096
    assert not is_direct(target)
    assert writer.write(content[4096:]) == 4096
    assert os.pread(target, 20000, 0) == content
