"""Damaged, lost or forged state: builds stay correct."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from project_folder import TIMEOUT_S, Ran, wait_until
from ready_project import UP_TO_DATE, ReadyProject, contents, targets

from buildsys.history.builds import RAN, RESTORED
from buildsys.history.database import History

ALL = targets("a")


def fill_with_garbage(path: Path) -> None:
    path.write_bytes(os.urandom(10_000))


def make_newer(path: Path) -> None:
    execute(path, "PRAGMA user_version = 99")


def execute(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def state(project: ReadyProject, name: str = "state.db") -> Path:
    return project.root / ".buildsys" / name


def test_the_history_outlives_the_build_folder_and_never_fails_a_build(
    ready_built: ReadyProject,
) -> None:
    def restore() -> Ran:
        shutil.rmtree(ready_built.root / "build")
        ran = ready_built.doit()
        assert (ran.code, ran.restored) == (0, ALL)
        return ran

    path = state(ready_built, "history.db")
    with closing(History.read_only(path)) as history:
        first = history.builds()
        measured = history.measurements(
            next(build for build in history.builds() if build.stage == "bench")
        )
    assert ({build.target for build in first}, {build.how for build in first}) == (ALL, {RAN})
    assert "opt" in {one.case for one in measured}
    assert all(one.count and one.p50_ms > 0 for one in measured)
    content = path.read_bytes()
    assert ready_built.doit() == UP_TO_DATE
    assert path.read_bytes() == content
    assert restore().err == ""
    with closing(History.read_only(path)) as history:
        assert [build.how for build in history.builds()][: len(ALL)] == [RESTORED] * len(ALL)
        assert history.builds()[len(ALL) :] == first
    make_newer(path)
    content = path.read_bytes()
    (warning,) = restore().err.splitlines()
    assert "builds of this run are missing in the history: " in warning
    assert path.read_bytes() == content
    fill_with_garbage(path)
    (warning,) = restore().err.splitlines()
    assert warning.endswith(f"set aside as {next(path.parent.glob('history.db.b*')).name}")
    with closing(History.read_only(path)) as history:
        assert len(history.builds()) == len(ALL)


def test_the_state_is_deleted_during_a_run(ready: ReadyProject) -> None:
    ready.hold()
    process = ready.start("-n", "2")
    wait_until(lambda: ready.is_held, "reference:a is at work")
    path = state(ready, ".")
    while path.exists():  # what has passed is being stored meanwhile
        shutil.rmtree(path, ignore_errors=True)
    ready.let_go()
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, "Traceback" in out + err) == (0, False), out + err
    again = ready.doit()
    assert (again.code, "reference:a" in again.ran) == (0, False)
    assert ready.doit() == UP_TO_DATE
    assert contents(ready.root / "build") == ready.clean_contents()
