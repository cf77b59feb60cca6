"""A tiny project for unit tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from looked_up_once import look_up_once
from tiny_project import make_project


@pytest.fixture(scope="session", autouse=True)
def _looked_up_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        look_up_once(patch)
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
