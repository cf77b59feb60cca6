"""Timing caches in `doit cache`; builds with real ones are under tests/gpu."""

from __future__ import annotations

import json
import os
import time
from hashlib import sha256
from pathlib import Path

from project_folder import ProjectFolder
from test_bad_disks import read_only, small_disk

from buildsys.store.timing_caches import (
    SharedTimingCache,
    TimingCacheData,
    damaged,
    list_files,
    read_shared,
    store_by_digest,
    write_shared,
)

CONDITIONS = {
    "library": "tensorrt-8.6.1",
    "gpu": "NVIDIA H200 9.0",
    "cuda": "cuda12.4 driver550.54",
    "settings": "ab",
}
TENSORRT = """\
model: pinned
source: {torchvision: resnet18}
inputs: {x: {shape: [batch, 3, 32, 32]}}
dims: {batch: {min: 1, opt: 2, max: 4}}
engines: [{backend: tensorrt, name: trt, timing_cache: {pin: PIN}}]
"""


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def fill(folder: Path) -> None:
    """Fill a folder: one shared cache, three by digest, one set aside."""
    write_shared(folder / "some.timing_cache", TimingCacheData(b"a" * 1000), CONDITIONS)
    for data in (b"pinned", b"loose", b"another"):
        store_by_digest(folder, TimingCacheData(data))
    (folder / "other.timing_cache.broken-20260101T000000").write_bytes(b"x")


def kept(folder: Path) -> set[str]:
    return {path.name for path in (folder / "by_digest").iterdir()}


def test_show_verify_and_collect(project: ProjectFolder, tmp_path: Path) -> None:
    folder = project.root / ".buildsys/timing_caches"
    assert "timing caches" not in project.doit("cache").out
    fill(folder)
    (project.root / "configs/models/pinned.yaml").write_text(
        TENSORRT.replace("PIN", digest(b"pinned"))
    )
    shown = project.doit("cache")
    assert f"{folder}: " in shown.out
    assert (
        "of timing caches: 1 shared, 3 kept by digest, 1 set aside (safe to delete)\n" in shown.out
    )
    facts = json.loads(project.doit("cache", "--json").out)["timing_caches"]
    assert (facts["shared"], facts["kept"], facts["broken"]) == (1, 3, 1)

    ran = project.doit("cache", "gc", "--dry-run")
    assert "would remove 3 timing caches, " in ran.out
    assert len(kept(folder)) == 3
    ran = project.doit("cache", "gc")
    assert "removed 3 timing caches, " in ran.out
    assert kept(folder) == {digest(b"pinned")}, "what a manifest pins stays"
    assert (folder / "some.timing_cache").is_file(), "the shared one goes by age alone"
    os.utime(folder / "some.timing_cache", (time.time() - 9e6,) * 2)
    os.utime(folder / "by_digest" / digest(b"pinned"), (time.time() - 9e6,) * 2)
    assert "removed 1 timing cache," in project.doit("cache", "gc", "--older-than", "30d").out
    assert kept(folder) == {digest(b"pinned")}

    (folder / "by_digest" / digest(b"pinned")).chmod(0o644)
    (folder / "by_digest" / digest(b"pinned")).write_bytes(b"damaged")
    verified = project.doit("cache", "verify")
    assert verified.code == 1
    assert f"{digest(b'pinned')} is unusable: it does not match its digest" in verified.out


def test_a_folder_that_clones_share(project: ProjectFolder, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    fill(shared)
    (project.root / "configs/project.yaml").write_text(f"timing_caches: {shared}\n")
    project.add_model("lin")
    assert f"{shared}: " in project.doit("cache").out
    assert "timing caches" not in project.doit("cache", "gc").out
    assert len(kept(shared)) == 3, "another clone may pin what this one does not know"
    project.environment["BUILDSYS_TIMING_CACHES"] = "here"
    fill(project.root / "here")
    assert f"{project.root}/here: " in project.doit("cache").out


def test_an_invalid_pin_is_a_manifest_error(project: ProjectFolder) -> None:
    (project.root / "configs/models/pinned.yaml").write_text(TENSORRT.replace("PIN", "latest"))
    ran = project.doit("list")
    assert ran.code == 3
    assert "configs/models/pinned.yaml:5:" in ran.err
    assert "engines.0.timing_cache.pin: " in ran.err
    assert "a SHA-256 digest of 64 lowercase hexadecimal digits" in ran.err


def build_on(folder: Path, scratch: Path) -> list[str]:
    """Act like two builds; return the warnings of the second one."""
    shared_cache = SharedTimingCache(
        folder, CONDITIONS, lambda files, merged: merged.write_bytes(files[-1].read_bytes()) and []
    )
    for data in (b"first" * 1000, b"second" * 1000):
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
        assert list(damaged(folder)) == [], "its files are complete"
        (path,) = list_files(folder).shared
        assert read_shared(path, CONDITIONS) is not None
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
