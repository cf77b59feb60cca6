"""Timing cache files and checkouts; real ones are under tests/gpu."""

import errno
import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from buildsys.store.timing_caches import SharedTimingCache

CONDITIONS = {
    "library": "tensorrt-8.6.1",
    "gpu": "NVIDIA H200 9.0",
    "cuda": "cuda12.4 driver550.54",
    "settings": "ab",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches"


def build(shared: SharedTimingCache, scratch: Path, timings: bytes) -> dict[str, object]:
    """Check out a copy, add timings, merge it back."""
    scratch.mkdir(exist_ok=True)
    private = scratch / "timing_cache"
    private.unlink(missing_ok=True)
    original = shared.checkout(private)
    private.write_bytes((private.read_bytes() if original else b"") + timings)
    return shared.merge_back(private, original)


def test_a_build_reuses_earlier_timings(folder: Path, tmp_path: Path) -> None:
    shared = SharedTimingCache(folder, CONDITIONS)
    first = build(shared, tmp_path / "1", b"conv 1 us\n")
    assert first == {"digest": sha256(b"conv 1 us\n").hexdigest(), "bytes": 10, "added_bytes": 10}
    second = build(shared, tmp_path / "2", b"gemm 2 us\n")
    assert second["lent"] == first["digest"]
    assert second["added_bytes"] == 10
    assert shared.checkout(tmp_path / "look") == (b"conv 1 us\ngemm 2 us\n")
    assert shared.warnings == []
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")], (
        "a temporary file is left"
    )


def test_other_conditions_have_another_file(folder: Path, tmp_path: Path) -> None:
    others = [{**CONDITIONS, field: "other"} for field in CONDITIONS]
    every = [SharedTimingCache(folder, found) for found in (CONDITIONS, *others)]
    assert len({shared.path for shared in every}) == len(every)
    readable = "tensorrt-8.6.1_NVIDIA-H200-9.0_cuda12.4-driver550.54_"
    assert every[0].path.name.startswith(readable)
    build(every[0], tmp_path / "1", b"x")
    assert (
        SharedTimingCache(folder, {**CONDITIONS, "gpu": "other"}).checkout(tmp_path / "look")
        is None
    )


def test_the_larger_cache_of_two_builds_is_kept(folder: Path, tmp_path: Path) -> None:
    shared = SharedTimingCache(folder, CONDITIONS)
    for private, timings in (
        ("first", b"conv 1 us\n"),
        ("second", b"gemm\n"),
        ("third", b"x" * 20),
    ):
        (tmp_path / private).write_bytes(timings)  # begun before the others ended
        assert shared.merge_back(tmp_path / private, None)["bytes"] == len(timings)
        kept = shared.checkout(tmp_path / "look")
        assert kept == (b"conv 1 us\n" if private == "second" else timings)


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: stored[:-3],
        lambda stored: stored.partition(b"\n")[2],  # as TensorRT itself writes it
        lambda stored: stored[:-3] + b"XX\n",
        lambda stored: stored.replace(b"H200", b"H100"),
        lambda stored: os.urandom(9000),
    ],
)
def test_a_broken_or_foreign_file_is_replaced_with_a_warning(
    folder: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    build(SharedTimingCache(folder, CONDITIONS), tmp_path / "1", b"conv 1 us\n")
    (path,) = folder.glob("*.timing_cache")
    path.write_bytes(damage(path.read_bytes()))
    shared = SharedTimingCache(folder, CONDITIONS)
    assert "lent" not in build(shared, tmp_path / "2", b"gemm 2 us\n")
    assert all("is unusable: " in warning for warning in shared.warnings)
    assert shared.warnings[0].endswith("; a new one is started")
    assert shared.checkout(tmp_path / "look") == (b"gemm 2 us\n")


def test_an_empty_cache_is_not_recorded(folder: Path, tmp_path: Path) -> None:
    shared = SharedTimingCache(folder, CONDITIONS)
    assert shared.merge_back(tmp_path / "nothing", None) == {}
    (tmp_path / "empty").touch()
    assert shared.merge_back(tmp_path / "empty", None) == {}
    assert not folder.exists()


def test_a_full_disk_leaves_the_previous_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(SharedTimingCache(folder, CONDITIONS), tmp_path / "1", b"conv 1 us\n")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(_path: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    shared = SharedTimingCache(folder, CONDITIONS)
    build(shared, tmp_path / "2", b"gemm 2 us\n")
    monkeypatch.undo()
    (warning,) = shared.warnings
    assert "cannot be kept" in warning
    assert "No space left on device" in warning
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_cache_restarted_by_the_builder_does_not_count_as_reused(
    folder: Path, tmp_path: Path
) -> None:
    shared = SharedTimingCache(folder, CONDITIONS)
    build(shared, tmp_path / "1", b"of another builder")
    private = tmp_path / "private"
    original = shared.checkout(private)
    private.write_bytes(b"gemm\n")
    figures = shared.merge_back(private, original)
    assert (figures["added_bytes"], "lent" in figures) == (5, False)
    assert shared.checkout(private) == (b"gemm\n")


def test_the_header_is_one_readable_line(folder: Path, tmp_path: Path) -> None:
    build(SharedTimingCache(folder, CONDITIONS), tmp_path / "1", b"binary\n\x00")
    header, _, data = next(folder.glob("*.timing_cache")).read_bytes().partition(b"\n")
    assert json.loads(header)["made_for"] == CONDITIONS
    assert data == b"binary\n\x00"
