import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from recorded_builds import MEASUREMENT, MakeBuild

from buildsys.errors import UsageError
from buildsys.history.database import History, digest_of, import_history


def change(file: Path, script: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(script)


@pytest.fixture
def other(tmp_path: Path) -> History:
    return History(tmp_path / "other.db")


def test_an_import_adds_builds_with_all_that_belongs_to_them_once(
    history: History, other: History, make_build: MakeBuild
) -> None:
    ours, shared = make_build(machine="a"), make_build(machine="a")
    theirs = make_build(machine="b", machine_id="bbbb", environment=digest_of('{"tool:x": "1"}'))
    history.add(ours)
    for one in (history, other):
        one.add(shared)
    other.add(theirs, [MEASUREMENT], ['{"tool:x": "1"}'])
    other.close()
    content = other.path.read_bytes()
    assert import_history(history, other.path) == (1, 1)
    assert import_history(history, other.path) == (0, 2)
    assert import_history(history, history.path) == (0, 3)
    assert {build.id for build in history.builds()} == {ours.id, shared.id, theirs.id}
    assert history.measurements(theirs) == (MEASUREMENT,)
    assert history.environment(theirs) == {"tool:x": "1"}
    assert other.path.read_bytes() == content


def test_files_that_are_no_history_are_refused(
    history: History, other: History, make_build: MakeBuild, tmp_path: Path
) -> None:
    history.add(make_build())
    garbage, newer = tmp_path / "garbage.db", tmp_path / "newer.db"
    garbage.write_bytes(b"text" * 5000)
    change(newer, "PRAGMA application_id=1651730547; PRAGMA user_version=9")
    damaged, truncated = tmp_path / "damaged.db", tmp_path / "truncated.db"
    for _ in range(50):
        other.add(make_build(reason="x" * 200))
    other.close()
    change(other.path, "PRAGMA wal_checkpoint(TRUNCATE)")
    content = other.path.read_bytes()
    damaged.write_bytes(content[:-4096] + b"\xff" * 4096)
    truncated.write_bytes(content[: len(content) // 2])
    future = tmp_path / "future.db"
    future.write_bytes(content)
    change(future, "UPDATE builds SET position = 1e300 WHERE rowid = 1")
    for path, problem in (
        (future, "1 of its builds are not from between 1970 and now"),
        (garbage, "not a database"),
        (damaged, "it is damaged"),
        (truncated, "malformed"),
        (newer, "a newer buildsys wrote it"),
        (tmp_path / "none.db", "there is no file"),
        (tmp_path, "there is no file"),
        (Path(), "there is no file"),
    ):
        with pytest.raises(UsageError, match=problem):
            import_history(history, path)
    assert len(history.builds()) == 1
