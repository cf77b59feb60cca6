import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from buildsys.errors import StageError
from buildsys.store.state_db import StateDb

INSERT = "INSERT INTO owned VALUES (?, ?)"
COUNT = "SELECT count(*) FROM owned"


def test_a_transaction_is_all_or_nothing(db: StateDb) -> None:
    db.write([(INSERT, ("a", "t"))])
    with pytest.raises(StageError):
        db.write([(INSERT, ("b", "t")), (INSERT, ("a", "t"))])  # the second breaks the primary key
    assert db.read("SELECT path FROM owned") == [("a",)]


def test_rows_survive_the_process(db: StateDb) -> None:
    db.write([(INSERT, ("a", "t"))])
    db.close()
    assert StateDb(db.path).read(COUNT) == [(1,)]


def test_garbage_is_set_aside_with_a_warning(db: StateDb, warnings_given: list[str]) -> None:
    db.path.parent.mkdir()
    db.path.write_bytes(b"not a database at all" * 500)
    assert db.read(COUNT) == [(0,)]
    broken = [path for path in db.path.parent.iterdir() if ".broken-" in path.name]
    assert [path.read_bytes()[:5] for path in broken] == [b"not a"]
    assert len(warnings_given) == 1
    assert broken[0].name in warnings_given[0]


def test_damage_inside_is_set_aside(db: StateDb, warnings_given: list[str]) -> None:
    db.write([(INSERT, (f"path-{n}", "t")) for n in range(3000)])
    db.close()
    content = bytearray(db.path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    db.path.write_bytes(content)
    assert db.read("SELECT count(*) FROM owned WHERE target = 't'") == [(0,)]
    assert len(warnings_given) == 1


def test_another_version_is_set_aside(db: StateDb, warnings_given: list[str]) -> None:
    db.path.parent.mkdir()
    with sqlite3.connect(db.path) as connection:
        connection.execute("PRAGMA user_version=999")
    connection.close()
    db.write([(INSERT, ("a", "t"))])
    assert "version 999" in warnings_given[0]


def test_a_deleted_file_is_created_again(db: StateDb, warnings_given: list[str]) -> None:
    db.write([(INSERT, ("a", "t"))])
    for path in list(db.path.parent.iterdir()):
        path.unlink()
    db.write([(INSERT, ("b", "t"))])
    assert StateDb(db.path).read("SELECT path FROM owned") == [("b",)]
    assert warnings_given == []


def test_a_state_folder_that_cannot_be_created_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder belongs")
    with pytest.raises(StageError, match=r"cannot use the build state .*state\.db.*writable"):
        StateDb(tmp_path / "state" / "state.db").read(COUNT)


def test_a_read_only_state_folder_is_a_clear_error(db: StateDb) -> None:
    db.write([(INSERT, ("a", "t"))])
    db.close()
    read_only = StateDb(Path("/proc/self/state.db"))  # not even root can write there
    with pytest.raises(StageError, match="folder must be writable"):
        read_only.write([(INSERT, ("b", "t"))])


def test_a_text_that_cannot_be_stored_is_known_to_this_process(db: StateDb) -> None:
    db.set("stored", "x")
    with sqlite3.connect(db.path) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.close()
    db._open().execute(f"PRAGMA max_page_count = {pages}")  # the disk is full
    large = "y" * 100_000
    with pytest.raises(StageError):
        db.write([(INSERT, (large, "t"))])
    db._open().execute(f"PRAGMA max_page_count = {pages}")  # the failure has closed it
    db.set("large", large)
    assert (db.get("stored"), db.get("large")) == ("x", large)
    assert StateDb(db.path).get("large") is None


def test_threads_share_it(db: StateDb) -> None:
    def insert(number: int) -> None:
        for step in range(50):
            db.write([(INSERT, (f"{number}-{step}", "t"))])

    threads = [threading.Thread(target=insert, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db.read(COUNT) == [(200,)]


def test_processes_that_start_together_share_it(db: StateDb, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from buildsys.store.state_db import StateDb\n"
        "db = StateDb(Path(sys.argv[1]))\n"
        "insert = 'INSERT INTO owned VALUES (?, ?)'\n"
        "for n in range(50): db.write([(insert, (f'{sys.argv[2]}-{n}', 't'))])\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, db.path, str(number)]) for number in range(3)
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert db.read(COUNT) == [(150,)]
