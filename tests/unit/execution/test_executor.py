"""Executor: rebuilt targets, reported outcomes, and the effects of failures."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from blake3 import blake3
from tiny_project import (
    ALL,
    BENCH,
    CHANGES,
    ENGINE,
    EXPORT,
    MODEL,
    REPORT,
    actions,
    build,
    make_executor,
    order,
    published,
    stale,
)

from buildsys.errors import CheckFailed, StageError, WorkerDied
from buildsys.execution.executor import Executor
from buildsys.execution.stale_reasons import summarize_reasons
from buildsys.plan.action import Action, FileRef
from buildsys.store.object_store import Store


def engine_text(root: Path) -> str:
    return json.loads((root / "build/m/report/report.json").read_text())["engine"]


def why(executor: Executor, target: str) -> str:
    return summarize_reasons(executor.examine(target).reasons)


# --- rebuilds ---


def test_the_first_run_builds_all_and_the_second_nothing(root: Path) -> None:
    assert build(root) == ALL
    assert build(root) == []


def test_only_affected_targets_are_built(root: Path) -> None:
    build(root)
    assert build(root, actions(duration=2.0)) == [BENCH, REPORT]
    assert build(root, actions(opset=18, duration=2.0)) == ALL
    assert "opset 18" in engine_text(root)


def test_early_cut_off_stops_at_equal_bytes(root: Path) -> None:
    build(root)
    (root / "net.py").write_text("# a comment\nimport blocks\n")
    assert build(root) == [EXPORT]


@pytest.mark.parametrize("name", [MODEL, "m/export/export.json"])
@pytest.mark.parametrize("stored", [True, False])
def test_an_edited_output_is_restored_or_rebuilt(root: Path, name: str, *, stored: bool) -> None:
    build(root)
    good = published(root)
    if not stored:
        shutil.rmtree(root / ".buildsys/store")
    (root / "build" / name).write_text("edited")
    assert stale(root)[0] == EXPORT
    assert build(root) == ([] if stored else [EXPORT])  # same bytes again: cut off
    assert published(root)[MODEL] == good[MODEL]
    assert published(root)["m/export/export.json"] != "edited"
    assert not stored or published(root) == good
    assert stale(root) == []


@pytest.mark.parametrize("stored", [True, False])
def test_a_deleted_build_folder_is_restored_or_rebuilt(root: Path, *, stored: bool) -> None:
    build(root)
    good = published(root)
    if not stored:
        shutil.rmtree(root / ".buildsys/store")
    shutil.rmtree(root / "build")
    assert build(root) == ([] if stored else ALL)
    assert not stored or published(root) == good
    assert stale(root) == []


def test_back_to_an_earlier_manifest_is_restored(root: Path) -> None:
    build(root, actions(opset=17))
    first = published(root)
    assert build(root, actions(opset=18)) == ALL
    second = published(root)
    for opset, wanted in ((17, first), (18, second), (17, first)):
        assert build(root, actions(opset=opset)) == []
        assert published(root) == wanted


def test_a_failed_check_is_not_restored(root: Path) -> None:
    build(root)
    order(root, ENGINE, "fail")
    with pytest.raises(CheckFailed):
        build(root, actions(opset=18))
    order(root, ENGINE)
    assert build(root, actions(opset=18)) == [ENGINE, BENCH, REPORT]


@pytest.mark.parametrize("end", ["fail", "break"])
def test_what_was_tried_is_in_all_records_of_a_failure(root: Path, end: str) -> None:
    folders: list[Path] = []

    def try_changes(failed: Action, problem: str, changes: Sequence[str], folder: Path) -> str:
        assert problem
        folders.append(folder)
        return f"tried {failed.target} with {changes[0]}"

    order(root, EXPORT, end)
    executor, _ = make_executor(root, try_changes=try_changes)
    with pytest.raises(StageError, match=(tried := f"tried {EXPORT} with {CHANGES[0]}")):
        executor.run(EXPORT)
    failure = executor.examine(EXPORT).failure
    executor.close()
    assert failure is not None
    assert tried in failure
    if end == "fail":
        result = json.loads((root / "build/m/export/export.json").read_text())
        assert result["hint"] == tried
    assert [folder.exists() for folder in folders] == [False]


def test_a_forgotten_target_is_built_not_restored(root: Path) -> None:
    build(root)
    executor, pool = make_executor(root)
    executor.ledger.forget(EXPORT)
    assert not executor.up_to_date_status(EXPORT)
    assert not executor.run(EXPORT).restored
    assert pool.ran == [EXPORT]
    executor.close()
    assert build(root) == []


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "record"])
def test_a_damaged_store_costs_a_rebuild_and_a_warning(
    root: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    build(root)
    good = published(root)[MODEL]
    found = Store(root / ".buildsys/store").object_path(blake3(good.encode()).hexdigest())
    if damage == "gone":
        found.unlink()
    elif damage == "record":
        shutil.rmtree(root / ".buildsys" / "store" / "actions")
        (root / ".buildsys/state.db").unlink()
    else:
        found.chmod(0o644)
        found.write_text(good[:-1] if damage == "cut" else good[:-1] + "x")
    (root / "build" / MODEL).unlink()
    ran = build(root)
    assert ran[0] == EXPORT
    assert published(root)[MODEL] == good
    assert ("put into quarantine; it is rebuilt" in capsys.readouterr().err) == (damage == "flip")
    (root / "build" / MODEL).unlink()
    assert build(root) == []  # the rebuilt outputs are in the store again


def test_a_read_only_store_causes_one_warning(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "store").write_text("a file where a folder belongs")
    executor, pool = make_executor(root, store=Store(root / "store"))
    for target in ALL:
        executor.run(target)
    executor.close()
    assert pool.ran == ALL
    assert capsys.readouterr().err.count("cannot write to the store") == 1
    assert stale(root) == []


def test_outputs_that_are_no_longer_produced_are_removed(root: Path) -> None:
    order(root, EXPORT, "external")
    build(root)
    assert json.loads(published(root)["m/engine/e/engine.json"])["weights"] == "weights"
    order(root, EXPORT)
    assert build(root, actions(opset=18)) == ALL
    assert "m/export/model.onnx.data" not in published(root)
    assert json.loads(published(root)["m/engine/e/engine.json"])["weights"] is None


def test_additional_files_are_published_checked_and_removed(root: Path) -> None:
    executor, pool = make_executor(root)
    pool.meanwhile = lambda job: (job.outputs["result"].parent / "profile.txt").write_text("extra")
    executor.run(EXPORT)
    assert executor.ledger.owned(EXPORT) == {MODEL, "m/export/export.json", "m/export/profile.txt"}
    (root / "build/m/export/profile.txt").write_text("edited")
    assert not executor.up_to_date_status(EXPORT)
    executor.close()
    shutil.rmtree(root / ".buildsys/store")  # or it would be restored as soon as it has been stored
    executor, _ = make_executor(root)
    executor.run(EXPORT)
    assert "m/export/profile.txt" not in published(root)


def test_a_plan_that_moves_an_output_makes_it_stale(root: Path) -> None:
    build(root)
    moved = actions()
    outputs = {**moved[BENCH].outputs, "result": FileRef("m/bench/moved.json")}
    moved[BENCH] = replace(moved[BENCH], outputs=outputs)
    assert stale(root, moved)[0] == BENCH
    executor, _ = make_executor(root, moved)
    executor.run(BENCH)
    assert {name for name in published(root) if "bench" in name} == {"m/bench/moved.json"}


# --- outcomes and reasons ---


def test_an_outcome_has_the_facts_for_the_console(root: Path) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    executor, _ = make_executor(root, on_event=lambda target, event: events.append((target, event)))
    outcome = executor.run(EXPORT)
    record = executor.ledger.lookup(EXPORT)
    assert (outcome.status, outcome.seconds, outcome.waited) == ("passed", 0.25, False)
    assert record is not None
    assert record.figures == {
        "nodes": 3,
        "cases": [{"name": "opt"}],
    }  # raw samples stay in the file
    assert record.log == "build/m/export/export.log"
    assert (root / record.log).read_text() == "log of export:m\n"
    assert events == [
        (EXPORT, {"event": "stale", "reason": "never built"}),
        (EXPORT, {"event": "progress", "message": "at work"}),
    ]
    assert executor.run(EXPORT)._replace(waited=False) == outcome  # the same from the record


def test_a_missing_input_is_reported(root: Path) -> None:
    executor, _ = make_executor(root)
    executor.run(EXPORT)
    executor.run(ENGINE)
    (root / "build" / MODEL).unlink()
    assert why(executor, ENGINE) == f"input {MODEL} is missing"
    with pytest.raises(StageError, match=r"engine:m:e needs .*model\.onnx, which does not exist"):
        executor.run(ENGINE)


# --- failures ---


@pytest.mark.parametrize("how", [(), ("raise",)])
def test_a_failed_check_publishes_its_result_but_no_artefact(
    root: Path, how: tuple[str, ...]
) -> None:
    build(root)
    order(root, EXPORT, "fail", *how)
    executor, _ = make_executor(root, actions(opset=18))
    written = "build/m/export/export.json, build/m/export/worst.npy"
    with pytest.raises(CheckFailed, match=f"numbers differ; do something; details: {written}"):
        executor.run(EXPORT)
    files = published(root)
    assert json.loads(files["m/export/export.json"])["status"] == "failed"
    assert files["m/export/worst.npy"] == "failing tensor"
    assert MODEL not in files
    assert not executor.up_to_date_status(EXPORT)
    (root / f"do-{EXPORT}").unlink()
    executor.run(EXPORT)
    assert "m/export/worst.npy" not in published(root)


def test_files_about_a_failure_replace_outputs_until_the_next_success(root: Path) -> None:
    build(root)
    before = published(root)
    executor, pool = make_executor(root)
    files = {
        "m/report/report.json": b"{}",
        "m/report/last_passed.json": before["m/report/report.json"].encode(),
    }
    executor.replace_by_failure(REPORT, lambda: ({}, ""))
    assert (published(root), executor.up_to_date_status(REPORT)) == (before, "passed")
    executor.replace_by_failure(REPORT, lambda: (files, "it describes a failure"))
    assert published(root) == before | {name: content.decode() for name, content in files.items()}
    assert executor.ledger.owned(REPORT) == files.keys()  # what `buildsys clean` removes
    assert why(executor, REPORT) == "last run failed: it describes a failure"
    assert stale(root) == [REPORT]
    assert executor.run(REPORT).restored
    assert (published(root), pool.ran) == (before, [])


@pytest.mark.parametrize(("word", "error"), [("die", WorkerDied), ("break", StageError)])
def test_a_stage_that_breaks_leaves_the_previous_outputs_alone(
    root: Path, word: str, error: type[Exception]
) -> None:
    build(root)
    before = published(root)
    order(root, EXPORT, word)
    with pytest.raises(error):
        make_executor(root, actions(opset=18))[0].run(EXPORT)
    assert published(root) == before
    assert build(root) == []


@pytest.mark.parametrize(
    ("word", "free_blocks", "is_external"),
    [("die", 1 << 20, True), ("break", 1 << 20, False), ("break", 255, True)],
)
def test_a_cause_outside_the_model_is_marked(
    root: Path, monkeypatch: pytest.MonkeyPatch, word: str, free_blocks: int, *, is_external: bool
) -> None:
    disk = SimpleNamespace(f_bavail=free_blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    order(root, EXPORT, word)
    with pytest.raises(StageError) as failed:
        make_executor(root)[0].run(EXPORT)
    assert failed.value.is_external is is_external


@pytest.mark.parametrize("word", ["half", "silent"])
def test_a_stage_that_does_not_write_its_outputs_fails(root: Path, word: str) -> None:
    order(root, EXPORT, word)
    with pytest.raises(StageError, match="did not write"):
        make_executor(root)[0].run(EXPORT)
    assert published(root) == {}


@pytest.mark.parametrize("how", [(), ("raise",)])
def test_an_unavailable_engine_is_an_outcome_and_fresh(root: Path, how: tuple[str, ...]) -> None:
    order(root, ENGINE, "unavailable", *how)
    executor, _ = make_executor(root)
    executor.run(EXPORT)
    outcome = executor.run(ENGINE)
    assert (outcome.status, outcome.reason, outcome.hint) == (
        "unavailable",
        "no GPU",
        "do something",
    )
    assert executor.up_to_date_status(ENGINE)
    assert executor.run(BENCH).status == "passed"  # its stage says what an absent engine means


def test_a_required_engine_must_be_available(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order(root, ENGINE, "unavailable")
    make_executor(root)[0].run(EXPORT)
    for _ in range(2):
        executor, pool = make_executor(root, actions(required=True))
        with pytest.raises(
            StageError, match="engine:m:e is required, but unavailable: no GPU; do something"
        ):
            executor.run(ENGINE)
        assert not executor.up_to_date_status(ENGINE)
        executor.close()  # its record is in the store then, and must not be restored
        assert pool.ran == [ENGINE]
    lenient, _ = make_executor(root)
    lenient.run(ENGINE)
    assert lenient.up_to_date_status(ENGINE)
    monkeypatch.setenv("BUILDSYS_STRICT", "1")
    assert not lenient.up_to_date_status(ENGINE)
    assert why(lenient, ENGINE) == "required, but unavailable: no GPU"
    with pytest.raises(StageError, match="is required"):
        lenient.run(ENGINE)


def test_a_failure_has_the_duration_of_its_stage_everywhere(root: Path) -> None:
    (root / f"do-{BENCH}").write_text("fail")
    executor, _ = make_executor(root)
    for target in (EXPORT, ENGINE):
        executor.run(target)
    with pytest.raises(CheckFailed) as failed:
        executor.run(BENCH)
    assert failed.value.seconds == executor.ledger.history(BENCH)[0].seconds == 0.25
    (root / f"do-{BENCH}").write_text("break")
    with pytest.raises(StageError) as broken:
        executor.run(BENCH)
    assert broken.value.seconds == executor.ledger.history(BENCH)[0].seconds
    assert broken.value.seconds > 0
    executor.close()


# --- noisy measurements ---


def test_a_noisy_benchmark_is_published_and_recorded_as_noisy(root: Path) -> None:
    (root / f"do-{BENCH}").write_text("noise")
    executor, _ = make_executor(root)
    outcomes = {target: executor.run(target) for target in ALL}
    assert (outcomes[BENCH].status, outcomes[BENCH].reason) == ("noisy", "a busy neighbor")
    assert json.loads((root / "build/m/bench/e.json").read_text())["status"] == "noisy"
    assert executor.up_to_date_status(BENCH) == "noisy"
    assert executor.examine(BENCH).noise == "a busy neighbor"
    assert executor.up_to_date_status(REPORT) == "passed"
    assert executor.run(BENCH).status == "noisy", "if another process has measured meanwhile"
    executor.close()
    assert build(root) == []
    assert build(root, actions(duration=2.0)) == [BENCH, REPORT], "something has changed"
    (root / f"do-{BENCH}").unlink()
    executor, _ = make_executor(root, actions(duration=2.0))
    assert executor.run(BENCH, force=True).status == "passed"
    executor.close()
    assert build(root, actions(duration=2.0)) == [REPORT]


def test_after_a_noisy_repetition_the_steady_measurement_is_restored(root: Path) -> None:
    build(root)
    steady = (root / "build/m/bench/e.json").read_bytes()
    (root / f"do-{BENCH}").write_text("noise")
    executor, _ = make_executor(root)
    assert executor.run(BENCH, force=True).status == "noisy"
    found = executor.examine(BENCH)
    assert [str(reason) for reason in found.reasons] == [
        "last measurement was noisy: a busy neighbor"
    ]
    assert executor.run(BENCH).restored
    executor.close()
    assert (root / "build/m/bench/e.json").read_bytes() == steady
    assert stale(root) == []
