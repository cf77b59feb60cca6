"""A tiny project for unit tests."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import doit.plugin
import pytest
from tiny_project import make_project

from buildsys.plan import dependencies


@pytest.fixture(scope="session", autouse=True)
def _looked_up_once() -> Iterator[None]:
    """Remember doit's plugins, for which each run reads all packages, and parsed modules."""
    plugin: Any = doit.plugin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin, "entry_points", cache(plugin.entry_points))
        patch.setattr(dependencies, "parse_python", cache(dependencies.parse_python))
        yield


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of a tiny project; fail if temporary files remain."""
    monkeypatch.setenv("BUILDSYS_MACHINE_LOCK", str(tmp_path / "machine"))
    monkeypatch.delenv("BUILDSYS_STRICT", raising=False)
    folder = make_project(tmp_path / "project")
    yield folder
    left = folder / "build" / ".tmp"
    assert not left.exists() or list(left.iterdir()) == []
