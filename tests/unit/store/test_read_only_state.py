import os
import sqlite3
from pathlib import Path

import pytest

from buildsys.store.state_db import ReadOnlyStateDb, StateDb

INSERT, COUNT = "INSERT INTO owned VALUES (?, ?)", "SELECT count(*) FROM owned"


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.iterdir()}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    db = StateDb(tmp_path / "state" / "state.db")
    db.write([(INSERT, ("a", "t"))])
    db.close()
    return db.path


def test_reading_leaves_no_trace(state: Path, warnings_given: list[str]) -> None:
    before = stamps(state.parent)
    view = ReadOnlyStateDb(state, warnings_given.append)
    assert view.read(COUNT) == [(1,)]
    view.write([(INSERT, ("b", "t"))])
    assert view.read(COUNT) == [(1,)]
    view.close()
    assert (stamps(state.parent), warnings_given) == (before, [])


def test_a_missing_database_is_empty_and_not_created(tmp_path: Path) -> None:
    assert ReadOnlyStateDb(tmp_path / "state" / "state.db").read(COUNT) == [(0,)]
    assert list(tmp_path.iterdir()) == []


def test_the_write_ahead_log_is_read(state: Path) -> None:
    writer = StateDb(state)
    writer.write([(INSERT, ("b", "t"))])  # in the write-ahead log, not yet in the file
    assert (state.parent / "state.db-wal").stat().st_size
    assert ReadOnlyStateDb(state).read(COUNT) == [(2,)]
    writer.close()


def damage_version(state: Path) -> None:
    with sqlite3.connect(state) as connection:
        connection.execute("PRAGMA user_version=999")
    connection.close()


def damage_tables(state: Path) -> None:
    with sqlite3.connect(state) as connection:
        connection.execute("DROP TABLE owned")
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        damage_version,
        damage_tables,
        lambda state: state.write_bytes(b"no database" * 500),
        lambda state: os.truncate(state, 5000),
        lambda state: (state.unlink(), state.mkdir()),
    ],
)
def test_an_unreadable_database_warns_once_and_is_left_alone(
    state: Path, damage: object, warnings_given: list[str]
) -> None:
    assert callable(damage)
    damage(state)
    before = stamps(state.parent)
    view = ReadOnlyStateDb(state, warnings_given.append)
    assert view.read(COUNT) == [(0,)]
    assert view.read(COUNT) == [(0,)]
    assert len(warnings_given) == 1
    assert "nothing is known of earlier builds" in warnings_given[0]
    assert {
        name: stamp for name, stamp in stamps(state.parent).items() if not name.endswith("-shm")
    } == before
