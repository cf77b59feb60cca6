"""Timing caches in `buildsys cache`; builds with real ones are under tests/gpu."""

from __future__ import annotations

import json
import os
import time
from hashlib import sha256
from pathlib import Path

from project_folder import ProjectFolder
from test_bad_disks import read_only, small_disk

from buildsys.store.timing_caches import SharedTimingCache

CONDITIONS = {
    "library": "tensorrt-8.6.1",
    "gpu": "NVIDIA H200 9.0",
    "cuda": "cuda12.4 driver550.54",
    "settings": "ab",
}


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def fill(folder: Path) -> Path:
    """Write a cache."""
    folder.mkdir(parents=True)
    file = folder / "some.timing_cache"
    file.write_bytes(b"a" * 1000)
    return file


def test_show_and_collect(project: ProjectFolder) -> None:
    folder = project.root / ".buildsys/timing_caches"
    assert "timing cache" not in project.buildsys("cache").out
    file = fill(folder)
    assert f"{folder}: 1 timing cache, 1.00 kB\n" in project.buildsys("cache").out
    facts = json.loads(project.buildsys("cache", "--json").out)["timing_caches"]
    assert facts == {"folder": str(folder), "files": 1, "bytes": 1000}
    assert "timing cache" not in project.buildsys("cache", "gc", "--older-than", "30d").out
    os.utime(file, (time.time() - 9e6,) * 2)
    collect = "cache", "gc", "--older-than", "30d"
    assert "would remove 1 timing cache, " in project.buildsys(*collect, "--dry-run").out
    assert file.exists()
    assert "removed 1 timing cache, " in project.buildsys(*collect).out
    assert not file.exists()


def test_a_folder_that_clones_share(project: ProjectFolder, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    fill(shared)
    (project.root / "configs/project.yaml").write_text(f"timing_caches: {shared}\n")
    project.add_model("lin")
    assert f"{shared}: " in project.buildsys("cache").out
    project.environment["BUILDSYS_TIMING_CACHES"] = "here"
    fill(project.root / "here")
    assert f"{project.root}/here: " in project.buildsys("cache").out


def build_on(folder: Path, scratch: Path) -> list[str]:
    """Act like two builds; return the warnings of the second one."""
    shared_cache = SharedTimingCache(folder, CONDITIONS)
    for data in (b"first" * 2000, b"second" * 2000):
        shared_cache.warnings.clear()
        private = scratch / "private"
        private.unlink(missing_ok=True)
        original = shared_cache.checkout(private)
        private.write_bytes(data)
        assert shared_cache.merge_back(private, original)["digest"] == digest(data)
    return shared_cache.warnings


def test_a_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "caches"
    with small_disk(folder, "16k"):
        (warning,) = build_on(folder, tmp_path)
        assert "cannot be kept in" in warning
        assert "No space left on device; the next build times its tactics again" in warning
        complete = SharedTimingCache(folder, CONDITIONS)
        assert complete.checkout(tmp_path / "look") == b"first" * 2000
        assert not [path for path in folder.rglob(".*") if path.is_file()], (
            "a temporary file is left"
        )


def test_a_read_only_disk(tmp_path: Path) -> None:
    folder = tmp_path / "caches"
    assert build_on(folder, tmp_path) == []
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with read_only(folder):
        (warning,) = build_on(folder, tmp_path)
        assert "Read-only file system; the next build times its tactics again" in warning
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
