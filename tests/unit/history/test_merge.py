from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from recorded_builds import MEASUREMENT, MakeBuild

from buildsys.errors import UsageError
from buildsys.history.database import History, digest_of
from buildsys.history.merge import import_history


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
    assert import_history(history, other.path) == (1, 1, ())
    assert import_history(history, other.path) == (0, 2, ())
    assert {build.id for build in history.builds()} == {ours.id, shared.id, theirs.id}
    assert history.measurements(theirs) == (MEASUREMENT,)
    assert history.environment(theirs) == {"tool:x": "1"}
    assert other.path.read_bytes() == content


def test_an_import_says_what_looks_wrong(
    history: History, other: History, make_build: MakeBuild
) -> None:
    history.add(make_build())
    other.add(make_build(machine_id="bbbb", project="host/acme/else"))
    other.add(make_build(machine="late", machine_id="cccc", position=time.time() + 86400))
    assert import_history(history, other.path, "host/acme/models").notes == (
        "two machines are called ci; their ids are aaaa and bbbb",
        "1 build came from another project, host/acme/else",
        "1 build of late came from the future, as its clock was ahead",
    )
    assert import_history(history, other.path, "host/acme/models").notes == ()


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
    for path, problem in (
        (garbage, "not a database"),
        (damaged, "it is damaged"),
        (truncated, "malformed"),
        (newer, "a newer buildsys wrote it"),
        (tmp_path / "none.db", "there is no file"),
        (tmp_path, "there is no file"),
        (Path(), "there is no file"),
        (history.path, "of this project itself"),
    ):
        with pytest.raises(UsageError, match=problem):
            import_history(history, path)
    assert len(history.builds()) == 1


ENDLESS = (
    "ALTER TABLE {0} RENAME TO old; CREATE VIEW {0} AS WITH RECURSIVE n(rowid) AS "
    "(SELECT 1 UNION ALL SELECT rowid + 1 FROM n) SELECT * FROM n, old"
)


@pytest.mark.parametrize(
    "script",
    [
        ENDLESS.format("builds"),
        ENDLESS.format("texts"),
        "ALTER TABLE builds ADD COLUMN more GENERATED ALWAYS AS (hex(zeroblob(100000000)))",
        "ALTER TABLE builds DROP COLUMN why",
    ],
)
def test_tables_of_another_form_are_refused(
    history: History, other: History, make_build: MakeBuild, script: str
) -> None:
    other.add(make_build())
    other.close()
    change(other.path, script)
    with pytest.raises(UsageError, match=r"other\.db: its tables are not those of a history"):
        import_history(history, other.path)


def test_hostile_rows_of_a_history_are_left_out(
    history: History, other: History, make_build: MakeBuild
) -> None:
    ours, bad, good = make_build(), make_build(), make_build()
    history.add(ours)
    for build in (bad, good):
        other.add(build, texts=("true", " " * (65 << 20)))
    other.close()
    columns = "build, number, case_name, contender, clock, dims, count, p50_ms, figures"
    change(
        other.path,
        f"UPDATE builds SET position = 'late' WHERE id = '{bad.id}';"
        "UPDATE texts SET content = x'00' WHERE length(content) < 100;"
        f"INSERT INTO measurements ({columns})"
        f" VALUES ('{ours.id}', 1, 'opt', 'engine', 'host', '{{}}', 1, 0.1, '{{}}')",
    )
    found = import_history(history, other.path)
    assert (found.added, found.known) == (1, 0)
    assert found.notes == (f"1 build of {other.path} cannot be read and is left out",)
    assert history.builds() == [good, ours]
    assert history.measurements(ours) == ()
    with closing(sqlite3.connect(history.path)) as connection:
        assert connection.execute("SELECT count(*) FROM texts").fetchone() == (0,)
