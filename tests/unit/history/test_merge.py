from __future__ import annotations

import sqlite3
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from recorded_builds import MEASUREMENT, MakeBuild

from buildsys.errors import UsageError
from buildsys.history.database import History, digest_of
from buildsys.history.merge import _OtherFile, import_history


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


def test_many_builds_are_imported_in_parts(
    history: History, other: History, make_build: MakeBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buildsys.history.merge._AT_ONCE", 3)
    for _ in range(10):
        other.add(make_build())
    assert import_history(history, other.path).added == 10
    assert len(history.builds()) == 10


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


def test_what_is_readable_of_a_damaged_file_is_imported(
    history: History, other: History, make_build: MakeBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buildsys.history.merge._AT_ONCE", 5)
    for _ in range(200):
        other.add(make_build(reason="x" * 200))
    other.close()
    connection = sqlite3.connect(other.path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pages = connection.execute(
        "SELECT pageno FROM dbstat WHERE name = 'builds' AND pagetype = 'leaf'"
    ).fetchall()
    connection.close()
    content = bytearray(other.path.read_bytes())
    page = pages[len(pages) // 2][0]
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    other.path.write_bytes(content)
    found = import_history(history, other.path)
    assert 150 < found.added < 200
    assert "damaged" in found.notes[0]
    assert len(history.builds()) == found.added


def test_the_beginning_of_a_truncated_file_is_imported(
    history: History, other: History, make_build: MakeBuild
) -> None:
    for _ in range(200):
        other.add(make_build(reason="x" * 200))
    other.close()
    connection = sqlite3.connect(other.path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = other.path.read_bytes()
    other.path.write_bytes(content[: len(content) * 2 // 3])
    found = import_history(history, other.path)
    assert 50 < found.added < 200
    assert "damaged" in found.notes[0]
    other.path.write_bytes(content[: len(content) * 2 // 3].ljust(len(content), b"\0"))
    assert import_history(history, other.path).known == found.added


def test_files_that_are_no_history_are_refused(
    history: History, other: History, make_build: MakeBuild, tmp_path: Path
) -> None:
    history.add(make_build())
    garbage, newer = tmp_path / "garbage.db", tmp_path / "newer.db"
    garbage.write_bytes(b"text" * 5000)
    connection = sqlite3.connect(newer)
    connection.executescript("PRAGMA application_id=1651730547; PRAGMA user_version=9")
    connection.close()
    for path, problem in (
        (garbage, "not a database"),
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
    "change",
    [
        ENDLESS.format("builds"),
        ENDLESS.format("texts"),
        "ALTER TABLE builds ADD COLUMN more GENERATED ALWAYS AS (hex(zeroblob(100000000)))",
        "ALTER TABLE builds DROP COLUMN why",
    ],
)
def test_tables_of_another_form_are_refused(
    history: History, other: History, make_build: MakeBuild, change: str
) -> None:
    other.add(make_build())
    other.close()
    connection = sqlite3.connect(other.path)
    connection.executescript(change)
    connection.close()
    with pytest.raises(UsageError, match=r"other\.db: its tables are not those of a history"):
        import_history(history, other.path)


def test_a_damaged_file_with_a_huge_row_number_ends(
    history: History, other: History, make_build: MakeBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.add(make_build())
    other.close()
    connection = sqlite3.connect(other.path)
    connection.execute("UPDATE builds SET rowid = 9000000000000000000")
    connection.commit()
    connection.close()
    reads = []

    def damaged(db: _OtherFile, query: str, values: object = ()) -> list[Any]:
        del query, values
        db.damaged = True
        reads.append(1)
        return []

    monkeypatch.setattr(_OtherFile, "read", damaged)
    assert import_history(history, other.path).added == 0
    assert len(reads) < 100


def test_a_text_that_unpacks_to_too_much_counts_as_unknown(other: History) -> None:
    bomb = zlib.compress(b" " * (65 << 20))
    digest = digest_of(" " * (65 << 20))
    other._db.write([("INSERT INTO texts VALUES (?, ?)", (digest, bomb))])
    assert other.text(digest) == ""
