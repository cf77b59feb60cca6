"""Facts about our modules and the installed packages, read once per process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buildsys.store.state_db import StateDb

_FACTS = ("python/", "closure/", "package/")  # their names have the digests or stamps of the files
_known: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _known_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each state database start with them: a new project would read 600 modules and torch."""
    start, store = StateDb.__init__, StateDb.set

    def start_with_facts(self: StateDb, *arguments: Any, **options: Any) -> None:
        start(self, *arguments, **options)
        self._texts.update(_known)

    def keep(self: StateDb, name: str, text: str, /) -> None:
        store(self, name, text)
        if name.startswith(_FACTS):
            _known[name] = text

    monkeypatch.setattr(StateDb, "__init__", start_with_facts)
    monkeypatch.setattr(StateDb, "set", keep)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[StateDb]:
    (tmp_path / "state").mkdir()
    db = StateDb(tmp_path / "state" / "state.db")
    yield db
    db.close()
