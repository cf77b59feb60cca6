from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from buildsys.store.publish import Background
from buildsys.store.state_db import StateDb


@pytest.fixture
def background() -> Iterator[Background]:
    thread = Background()
    yield thread
    thread.close()


@pytest.fixture
def warnings_given() -> list[str]:
    return []


@pytest.fixture
def db(tmp_path: Path, warnings_given: list[str]) -> Iterator[StateDb]:
    state = StateDb(tmp_path / ".buildsys" / "state.db", warnings_given.append)
    yield state
    state.close()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function to make a checkout of the project."""
    monkeypatch.setenv("BUILDSYS_MACHINE_LOCK", str(tmp_path / "machine"))

    def make(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "net.py").write_text("width = 1\n")
        return folder

    return make
