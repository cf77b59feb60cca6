from __future__ import annotations

from collections.abc import Iterator
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
