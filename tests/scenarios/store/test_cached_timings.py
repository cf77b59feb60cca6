"""Timing caches in `buildsys cache`; builds with real ones are under tests/gpu."""

import json
import os
import time
from pathlib import Path

from project_folder import ProjectFolder


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
