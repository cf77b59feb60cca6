"""Stamps, atomic replacement and locks of files."""

import os
from pathlib import Path

import pytest

from buildsys.system.files import locked, open_lock, read_limited, replace_file, stamp, try_lock


def test_a_stamp_changes_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    assert stamp(file) is None
    file.write_bytes(b"one")
    before = stamp(file)
    assert before == stamp(str(file))
    times = file.stat()
    (tmp_path / "g").write_bytes(b"two")
    os.utime(tmp_path / "g", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "g").replace(file)
    assert stamp(file) != before
    assert stamp("\0") is None


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "f"
    replace_file(file, b"one")
    with file.open("rb") as reader:
        replace_file(file, b"two")
        assert reader.read() == b"one"
    assert file.read_bytes() == b"two"
    assert [path.name for path in file.parent.iterdir()] == ["f"]


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_failed_replacement_leaves_the_previous_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, step, full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"two")
    assert file.read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with locked(file):
        with (
            pytest.raises(BlockingIOError, match="another process has held lock for 0 s"),
            locked(file, timeout_s=0),
        ):
            pass
        with pytest.raises(BlockingIOError), locked(file, shared=True, timeout_s=0.02):
            pass
    with locked(file, shared=True), locked(file, shared=True, timeout_s=0):
        handle = open_lock(file)
        assert not try_lock(handle)
        assert try_lock(handle, shared=True)
        os.close(handle)


def test_a_limited_read_refuses_what_may_never_end(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"four")
    assert read_limited(file, 4) == b"four"
    with pytest.raises(ValueError, match="more than 0 MiB"):
        read_limited(file, 3)
    os.truncate(file, 1 << 40)
    with pytest.raises(ValueError, match="it has 1048576 MiB, more than 256 MiB"):
        read_limited(file, 256 << 20)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="not a regular file"):
        read_limited(tmp_path / "fifo", 4)
    with pytest.raises(IsADirectoryError):
        read_limited(tmp_path, 4)
