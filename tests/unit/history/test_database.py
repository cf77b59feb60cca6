import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_builds import MEASUREMENT, TARGET, MakeBuild

from buildsys.errors import StageError, UsageError
from buildsys.history.builds import RESTORED
from buildsys.history.database import History, digest_of


def test_a_build_survives_a_round_trip(history: History, make_build: MakeBuild) -> None:
    environment, manifest = '{"device:cpu.model": "x"}', '{"name": "m"}'
    build = make_build(
        reason="no", why="[]", revision="abc", dirty=True, outputs={"engine": "d"},
        figures={"latency_p50_ms": 1.5, "noisy": ["load"]},
        environment=digest_of(environment), manifest=digest_of(manifest),
    )  # fmt: skip
    history.add(build, [MEASUREMENT], [environment, manifest])
    history.close()
    found = History.read_only(history.path)
    assert found.builds() == [build]
    assert found.environment(build) == {"device:cpu.model": "x"}
    assert found.manifest(build) == {"name": "m"}
    assert found.measurements(build) == (MEASUREMENT,)


def test_builds_are_selected_newest_first(history: History, make_build: MakeBuild) -> None:
    export = make_build(target="export:m")
    other = make_build(target="bench:other:ort")
    foreign = make_build(project="host/acme/else")
    unknown = make_build(project="")
    for build in (export, other, foreign, unknown):
        history.add(build)
    ours = "host/acme/models"
    assert history.builds(model="m", project=ours) == [unknown, export]
    assert history.builds(target=TARGET, limit=1) == [unknown]
    assert history.builds(model="other") == [other]


def test_a_clock_set_back_keeps_the_order(history: History, make_build: MakeBuild) -> None:
    first, second = make_build(), make_build()
    history.add(replace(second, position=9_000_000.0))
    history.add(replace(first, position=1.0))
    history.add(make_build(machine_id="bbbb", position=2.0))  # has a clock of its own
    assert [build.id for build in history.builds(machine_id="aaaa")] == [first.id, second.id]
    assert history.builds()[0].position == pytest.approx(9_000_000.001)


def test_a_damaged_position_does_not_decide_the_order(
    history: History, make_build: MakeBuild
) -> None:
    history.add(make_build(position=1e300))
    first, second = make_build(), make_build(position=make_build().position - 10)
    history.add(first)
    history.add(second)
    assert [build.id for build in history.builds()][1:] == [second.id, first.id]


def test_ids_may_be_shortened(history: History, make_build: MakeBuild) -> None:
    build, other = make_build(id="ab" * 16), make_build(id="ac" * 16)
    history.add(build)
    history.add(other)
    assert history.find("ab") == build
    for wrong in ("a", "b", "", "zz"):
        with pytest.raises(UsageError, match="id"):
            history.find(wrong)


def test_a_restored_benchmark_has_the_measurements_of_its_original(
    history: History, make_build: MakeBuild
) -> None:
    original, between = make_build(key="k1"), make_build(key="k2")
    restored = make_build(key="k1", how=RESTORED)
    history.add(original, [MEASUREMENT])
    history.add(between)
    history.add(restored)
    assert history.measurements(restored) == (MEASUREMENT,)
    assert history.measurements(between) == ()


def test_a_missing_history_is_empty_and_is_not_created(tmp_path: Path) -> None:
    warnings: list[str] = []
    found = History.read_only(tmp_path / "none" / "history.db", warnings.append)
    assert (found.builds(), warnings, list(tmp_path.iterdir())) == ([], [], [])


def test_a_damaged_history_is_set_aside_with_one_sentence(
    history: History, make_build: MakeBuild, warnings_given: list[str]
) -> None:
    history.path.parent.mkdir()
    history.path.write_bytes(b"not a database" * 500)
    assert History.read_only(history.path, warnings_given.append).builds() == []
    history.add(make_build())
    assert len(history.builds()) == 1
    aside = [path for path in history.path.parent.iterdir() if ".broken-" in path.name]
    assert aside[0].read_bytes()[:5] == b"not a"
    read, written = warnings_given
    assert read.startswith("the history of builds") and "cannot be read" in read
    assert aside[0].name in written


@pytest.mark.parametrize(
    ("pragmas", "problem"),
    [
        ("PRAGMA application_id=1651730547; PRAGMA user_version=7", "a newer buildsys wrote it"),
        ("CREATE TABLE a (b)", "it is not the history of builds"),
    ],
)
def test_a_newer_history_and_another_database_are_left_as_they_are(
    history: History, make_build: MakeBuild, pragmas: str, problem: str, warnings_given: list[str]
) -> None:
    history.path.parent.mkdir()
    with sqlite3.connect(history.path) as connection:
        connection.executescript(pragmas)
    connection.close()
    before = history.path.read_bytes()
    with pytest.raises(StageError, match=problem):
        history.add(make_build())
    assert History.read_only(history.path, warnings_given.append).builds() == []
    assert problem in warnings_given[0]
    assert len(warnings_given) == 1
    assert history.path.read_bytes() == before
    assert [p.name for p in history.path.parent.iterdir() if "broken" in p.name] == []


def test_damaged_rows_are_left_out(history: History, make_build: MakeBuild) -> None:
    good = make_build()
    history.add(good, [MEASUREMENT])
    for column, value in (("position", None), ("target", None), ("figures", "[]"), ("dirty", 5)):
        damaged = make_build()
        history.add(damaged)
        with sqlite3.connect(history.path) as connection:
            connection.execute(f"UPDATE builds SET {column} = ? WHERE id = ?", (value, damaged.id))
        connection.close()
    assert history.builds() == [good]
    with sqlite3.connect(history.path) as connection:
        connection.execute("UPDATE measurements SET p50_ms = 'x'")
    connection.close()
    assert history.measurements(good) == ()
