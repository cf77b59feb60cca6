from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_builds import MEASUREMENT, TARGET, MakeBuild

from buildsys.errors import StageError, UsageError
from buildsys.history import database
from buildsys.history.builds import GPU, KEEP_SAMPLES, RESTORED, BuildSummary, evenly_spaced
from buildsys.history.database import FULL_BENCHMARKS, THINNED_SAMPLES, History, digest_of
from buildsys.store.state_db import Row


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
    assert found.measurements(build, samples=False) == (replace(MEASUREMENT, samples_ms=()),)


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
    assert history.builds(stage="bench", model="other") == [other]
    assert history.projects() == ["host/acme/else", ours]


def test_the_last_passed_build_may_be_asked_for_before_another(
    history: History, make_build: MakeBuild
) -> None:
    first, failed, last = make_build(), make_build(status="failed"), make_build()
    for build in (first, failed, last):
        history.add(build)
    assert history.last_passed(TARGET) == last
    assert history.last_passed(TARGET, before=last) == first
    assert history.last_passed(TARGET, before=first) is None


def test_a_clock_set_back_keeps_the_order(history: History, make_build: MakeBuild) -> None:
    first, second = make_build(), make_build()
    history.add(replace(second, position=9_000_000.0))
    history.add(replace(first, position=1.0))
    history.add(make_build(machine_id="bbbb", position=2.0))  # has a clock of its own
    assert [build.id for build in history.builds(machine_id="aaaa")] == [first.id, second.id]
    assert history.builds()[0].position == pytest.approx(9_000_000.001)
    assert history.last_position("bbbb") == 2.0


def test_ids_may_be_shortened(history: History, make_build: MakeBuild) -> None:
    build, other = make_build(id="ab" * 16), make_build(id="ac" * 16)
    history.add(build)
    history.add(other)
    assert history.find("ab") == build
    for wrong in ("a", "b", "", "zz"):
        with pytest.raises(UsageError, match="id"):
            history.find(wrong)


def test_a_restored_benchmark_has_the_samples_of_its_original(
    history: History, make_build: MakeBuild
) -> None:
    original, between = make_build(key="k1"), make_build(key="k2")
    restored = make_build(key="k1", how=RESTORED)
    history.add(original, [MEASUREMENT])
    history.add(between)
    history.add(restored)
    assert history.measurements(restored) == (MEASUREMENT,)
    assert history.measurements(between) == ()


def test_samples_are_kept_as_float32_up_to_a_limit(history: History, make_build: MakeBuild) -> None:
    many = [1 + n / 1e6 for n in range(20_000)]
    with_nan = [1.0, math.nan, 2.0, math.inf]
    build = make_build()
    history.add(
        build,
        [
            replace(MEASUREMENT, samples_ms=many, count=len(many)),
            replace(MEASUREMENT, samples_ms=with_nan, count=4, clock=GPU),
        ],
    )
    kept, finite = history.measurements(build)
    assert (len(kept.samples_ms), kept.count) == (KEEP_SAMPLES, 20_000)
    assert list(kept.samples_ms) == pytest.approx(evenly_spaced(many, KEEP_SAMPLES), rel=1e-6)
    assert kept.samples_ms == tuple(sorted(kept.samples_ms))  # still in the order measured
    assert (finite.samples_ms, finite.count) == ((1.0, 2.0), 4)


def test_samples_of_old_benchmarks_are_thinned(
    history: History, make_build: MakeBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = replace(MEASUREMENT, samples_ms=[float(n) for n in range(1000)], count=1000)
    other = make_build(target="bench:m:trt")
    history.add(other, [long])
    builds = [make_build() for _ in range(FULL_BENCHMARKS + 2)]
    for build in builds:
        history.add(build)
        history.add_measurements(build, [long])
    lengths = [len(history.measurements(build)[0].samples_ms) for build in builds]
    assert lengths == [THINNED_SAMPLES] * 2 + [1000] * FULL_BENCHMARKS
    thinned = history.measurements(builds[0])[0]
    assert (thinned.count, thinned.p50_ms, thinned.figures) == (1000, 1.5, {"p99_ms": 2.0})
    assert len(history.measurements(other)[0].samples_ms) == 1000


def test_evenly_spaced_samples_cover_the_whole_run() -> None:
    assert evenly_spaced(range(10), 20) == range(10)
    assert evenly_spaced(range(10), 5) == [1, 3, 5, 7, 9]
    assert len(evenly_spaced(range(1001), 256)) == 256


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
    for column, value in (("position", None), ("target", b"x"), ("figures", "[]"), ("dirty", 5)):
        damaged = make_build()
        history.add(damaged)
        with sqlite3.connect(history.path) as connection:
            connection.execute(f"UPDATE builds SET {column} = ? WHERE id = ?", (value, damaged.id))
        connection.close()
    assert history.builds() == [good]
    assert {one.figures == good.figures for one in history.summaries(good.target)} == {True}
    with sqlite3.connect(history.path) as connection:
        connection.execute("UPDATE measurements SET samples = x'00'")
    connection.close()
    assert history.measurements(good) == (replace(MEASUREMENT, samples_ms=()),)


def test_a_summary_has_the_fields_of_a_build(history: History, make_build: MakeBuild) -> None:
    builds = [make_build(run=run, dirty=dirty) for run, dirty in (("a", True), ("b", None))]
    for build in builds:
        history.add(build)
    other = replace(make_build(), machine_id="other")
    history.add(other)
    target, here = other.target, builds[0].machine_id
    found = history.summaries(target)
    assert [one.machine_id for one in found] == ["other", here, here]
    assert history.summaries(target, machine_id=here, limit=1) == [
        BuildSummary(**{name: getattr(builds[1], name) for name in BuildSummary._fields})
    ]
    assert [run for run, _, _ in history.last_reasons(other.model, 2)] == [other.run, "b"]


def test_two_processes_may_write(history: History, make_build: MakeBuild) -> None:
    other = History(history.path)
    for number in range(6):
        (history, other)[number % 2].add(make_build())
    other.close()
    assert len(history.builds()) == 6


def test_a_read_only_disk_is_an_error_for_writes(
    history: History, make_build: MakeBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.add(make_build())
    history.close()

    def refuse(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(database.StateDb, "_open", refuse)
    with pytest.raises(StageError, match="database or disk is full"):
        history.add(make_build())


def test_builds_of_a_target_on_a_machine_are_found_by_the_target(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[str] = []
    read = history._db.read

    def explain(query: str, values: Sequence[object] = ()) -> list[Row]:
        plans.append(str(read(f"EXPLAIN QUERY PLAN {query}", values)))
        return read(query, values)

    monkeypatch.setattr(history._db, "read", explain)
    history.builds(target="bench:m:ort", machine_id="m", limit=4)
    assert "builds_by_target" in plans[0]
