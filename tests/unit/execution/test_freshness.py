"""Freshness of targets after real runs, as seen by queries."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_project import (
    BENCH,
    ENGINE,
    EXPORT,
    REPORT,
    actions,
    build,
    make_checker,
    make_executor,
    make_project,
    order,
)

from buildsys.errors import CheckFailed, StageError
from buildsys.execution.freshness import FRESH, MAY_RERUN, STALE, Freshness, explain, is_required
from buildsys.execution.stale_reasons import NEVER_BUILT, UPSTREAM, StaleReason, decode_reasons
from buildsys.store.ledger import HistoryEntry
from buildsys.store.state_db import StateDb

A_FOLDER = "is a folder where a file is expected; remove it or rename it"
MODEL = "m/export/model.onnx"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILDSYS_MACHINE_LOCK", str(tmp_path / "machine"))
    monkeypatch.delenv("BUILDSYS_STRICT", raising=False)
    return make_project(tmp_path / "project")


def examine(root: Path, target: str, **options: Any) -> Freshness:
    graph = actions(**options)
    return make_checker(root).examine(graph[target])


def reasons(root: Path, target: str, **options: Any) -> list[str]:
    return [str(reason) for reason in examine(root, target, **options).reasons]


def test_a_fresh_target_has_the_time_and_reasons_of_its_build(root: Path) -> None:
    build(root)
    build(root, actions(opset=18))
    found = examine(root, EXPORT, opset=18)
    assert found.up_to_date
    assert found.last is not None
    assert decode_reasons(found.last.why) == (StaleReason("config", "export.opset", "17", "18"),)
    assert (found.last.status, found.last.seconds, found.expected_s) == ("passed", 0.25, 0.25)


def test_a_fresh_target_has_the_run_of_its_files_not_a_later_failed_one(
    root: Path,
) -> None:
    build(root)
    (root / f"do-{EXPORT}").write_text("break")
    with pytest.raises(StageError):
        make_executor(root, actions(opset=18))[0].run(EXPORT)
    found = examine(root, EXPORT)
    assert found.up_to_date
    assert found.last is not None
    assert (found.last.status, decode_reasons(found.last.why)) == (
        "passed",
        (StaleReason("never-built"),),
    )


def test_a_target_never_built_is_explained_without_its_key(root: Path) -> None:
    found = examine(root, EXPORT)
    assert [str(reason) for reason in found.reasons] == ["never built"]
    assert found.key is not None
    assert "parts" not in vars(found.key)
    build(root)
    shutil.rmtree(root / ".buildsys" / "locks")
    (root / ".buildsys" / "state.db").unlink()
    assert examine(root, EXPORT).restorable, "with a store the key is looked up in it"


def test_a_forced_run_of_a_fresh_target_has_that_reason(root: Path) -> None:
    build(root)
    executor, _ = make_executor(root)
    executor.run(EXPORT, force=True)
    found = examine(root, EXPORT).last
    assert found is not None
    assert [str(reason) for reason in decode_reasons(found.why)] == ["requested"]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("blocks.py", "# wider\nwidth = 9\n", ["blocks.py changed"]),
        ("net.py", "import blocks\nx = 1\n", ["net.py changed"]),
        ("blocks.py", None, ["blocks.py no longer used"]),
        ("net.py", None, ["blocks.py no longer used", "net.py is missing"]),
        (f"build/{MODEL}", None, [f"output missing: {MODEL}"]),
        (f"build/{MODEL}", "x", [f"output edited by hand: {MODEL}"]),
        (f"build/{MODEL}.data", "x", [f"output added by somebody else: {MODEL}.data"]),
    ],
)
def test_every_change_is_a_reason(
    root: Path, path: str, text: str | None, expected: list[str]
) -> None:
    build(root)
    if text is None:
        (root / path).unlink()
    else:
        (root / path).write_text(text)
    assert reasons(root, EXPORT) == expected


def test_without_its_records_a_target_was_never_built(root: Path) -> None:
    build(root)
    make_executor(root)[0].ledger.forget(EXPORT)
    assert reasons(root, EXPORT) == ["forgotten by `doit forget`"]
    shutil.rmtree(root / ".buildsys")
    assert reasons(root, EXPORT) == ["never built"]


def test_several_changes_are_several_reasons(root: Path) -> None:
    build(root)
    (root / "net.py").write_text("import blocks  # more\n")
    (root / "build/m/export/export.json").unlink()
    assert reasons(root, EXPORT, opset=18) == [
        "export.opset: 17 → 18",
        "net.py changed",
        "output missing: m/export/export.json",
    ]


def test_back_at_an_earlier_manifest_outputs_of_the_later_one_are_not_edited(
    root: Path,
) -> None:
    build(root)
    build(root, actions(opset=18))
    assert reasons(root, EXPORT) == ["export.opset: 18 → 17"]


def test_missing_inputs_are_reasons(root: Path) -> None:
    build(root)
    shutil.rmtree(root / "build/m/engine")
    assert reasons(root, ENGINE) == [
        "output missing: m/engine/e/engine.bin",
        "output missing: m/engine/e/engine.json",
    ]
    assert reasons(root, BENCH) == ["input m/engine/e/engine.bin is missing"]
    assert reasons(root, REPORT) == ["input m/engine/e/engine.json is missing"]


def test_a_failed_check_is_a_reason_and_its_removed_outputs_are_not(root: Path) -> None:
    build(root)
    (root / f"do-{EXPORT}").write_text("fail")
    with pytest.raises(CheckFailed):
        make_executor(root, actions(opset=18))[0].run(EXPORT)
    assert reasons(root, EXPORT, opset=18) == [
        "last run failed: numbers differ",
        "export.opset: 17 → 18",
    ]
    found = examine(root, EXPORT, opset=18).last
    assert found is not None
    assert [str(reason) for reason in decode_reasons(found.why)] == ["export.opset: 17 → 18"]


def test_the_reason_of_a_target_that_never_passed_is_its_failure(root: Path) -> None:
    (root / f"do-{EXPORT}").write_text("break")
    with pytest.raises(StageError):
        make_executor(root)[0].run(EXPORT)
    assert reasons(root, EXPORT) == ["last run failed: export:m broke"]
    assert examine(root, EXPORT).expected_s is None


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE records SET parts = substr(parts, 1, 20), key = 'k'",
        "UPDATE records SET parts = '[]', key = 'k'",
        "UPDATE records SET outputs = substr(outputs, 1, 20)",
        "UPDATE records SET outputs = NULL",
    ],
)
def test_a_truncated_record_makes_its_target_stale(root: Path, damage: str) -> None:
    build(root)
    db = StateDb(root / ".buildsys/state.db")
    db.write([(damage, ())])
    db.close()
    assert reasons(root, EXPORT) == ["the record of its last build cannot be read"]


def test_the_expected_time_is_that_of_the_last_run_with_a_result(root: Path) -> None:
    build(root)
    db = StateDb(root / ".buildsys/state.db")
    columns = "target, key, status, started, seconds, reason"
    row = f"INSERT INTO history ({columns}) VALUES (?, 'k', ?, '', ?, '')"
    for status, seconds in (("noisy", 5.0), ("unavailable", 0.1), ("passed", 3.0)):
        db.write([(row, (EXPORT, status, seconds)), (row, (EXPORT, "error", 0.0))])
        assert examine(root, EXPORT).expected_s == seconds
    db.close()


def test_a_stale_target_in_a_store_is_restorable(root: Path) -> None:
    build(root)
    executor, _ = make_executor(root, actions(opset=18))
    executor.run(EXPORT)
    executor.close()
    assert examine(root, EXPORT).restorable
    assert not examine(root, EXPORT, opset=19).restorable
    shutil.rmtree(root / ".buildsys/store/objects")
    assert not examine(root, EXPORT).restorable


def test_a_forgotten_target_is_not_restorable(root: Path) -> None:
    build(root)
    executor, _ = make_executor(root, actions(opset=18))
    executor.run(EXPORT)
    executor.close()
    executor.ledger.forget(EXPORT)
    found = examine(root, EXPORT)
    assert (found.up_to_date, found.restorable) == (False, False)


def test_a_read_only_check_writes_nothing(root: Path) -> None:
    build(root)
    (root / "net.py").write_text("import blocks  # other\n")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for target in (EXPORT, ENGINE, BENCH, REPORT):
        reasons(root, target, opset=18)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_failure_counts_for_the_key_that_it_had(root: Path) -> None:
    build(root)
    (root / f"do-{EXPORT}").write_text("break")
    with pytest.raises(StageError):
        make_executor(root, actions(opset=18))[0].run(EXPORT)
    assert examine(root, EXPORT, opset=18).failed_with_this_key
    other = examine(root, EXPORT, opset=19)
    assert (other.failure, other.failed_with_this_key) == (f"{EXPORT} broke", False)
    assert not examine(root, EXPORT).failed_with_this_key  # back at the manifest that was built


def test_an_explanation_has_the_facts_of_its_target_and_the_effects_upstream() -> None:
    run = HistoryEntry("a", "k", "passed", "2026", 1.5, "")
    never = (StaleReason(NEVER_BUILT),)
    explained = explain(
        [
            Freshness("a", reasons=never, last=run, restorable=True, unavailable="no GPU"),
            Freshness("b", up_to_date=True, last=run, expected_s=2.0, noise="a neighbor"),
            Freshness("c", up_to_date=True),
            Freshness("d", reasons=never),
            Freshness("e", up_to_date=True, unavailable="no GPU"),
        ],
        {"b": ["of another model", "a"], "c": ["b"], "d": ["e"]},
    )
    stale = StaleReason(UPSTREAM, "a", None, "will rerun")
    may_rerun = StaleReason(UPSTREAM, "b", None, "may rerun")
    assert explained == {
        "a": Freshness("a", reasons=never, last=run, restorable=True),
        "b": Freshness("b", up_to_date=True, reasons=(stale,), last=run, expected_s=2.0),
        "c": Freshness("c", up_to_date=True, reasons=(may_rerun,)),
        "d": Freshness("d", reasons=never),
        "e": Freshness("e", up_to_date=True, unavailable="no GPU"),
    }
    states = [STALE, MAY_RERUN, MAY_RERUN, STALE, FRESH]
    assert [target.state for target in explained.values()] == states


def test_an_unreadable_source_leaves_the_last_run_known(root: Path) -> None:
    build(root)
    (root / "net.py").unlink()
    (root / "net.py").mkdir()
    found = examine(root, EXPORT)
    assert (found.target, found.up_to_date, found.key) == (EXPORT, False, None)
    assert reasons(root, EXPORT) == [f"{root}/net.py {A_FOLDER}"]
    assert found.last is not None
    assert (found.last.target, found.expected_s) == (EXPORT, 0.25)


def test_an_unreadable_output_does_not_hide_the_key(root: Path) -> None:
    build(root)
    (root / "build" / MODEL).unlink()
    (root / "build" / MODEL).mkdir()
    found = make_checker(root).check(actions(opset=18)[EXPORT])
    assert (found.target, found.up_to_date) == (EXPORT, False)
    assert [str(reason) for reason in found.reasons] == [f"{root}/build/{MODEL} {A_FOLDER}"]
    assert found.key is not None
    assert found.last is not None


def test_a_target_without_history_can_be_up_to_date(root: Path) -> None:
    build(root)
    db = StateDb(root / ".buildsys/state.db")
    db.write([("DELETE FROM history", ())])
    db.close()
    found = examine(root, EXPORT)
    assert (found.up_to_date, found.last) == (True, None)


def test_without_a_store_nothing_is_restorable(root: Path) -> None:
    build(root)
    build(root, actions(opset=18))
    executor, _ = make_executor(root)
    assert executor.examine(EXPORT).restorable is False
    executor.close()


@pytest.mark.parametrize(
    ("value", "required"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)]
)
def test_strict_runs_require_every_target(
    monkeypatch: pytest.MonkeyPatch, value: str | None, *, required: bool
) -> None:
    monkeypatch.delenv("BUILDSYS_STRICT", raising=False)
    if value is not None:
        monkeypatch.setenv("BUILDSYS_STRICT", value)
    assert is_required(actions()[ENGINE]) is required
    assert is_required(actions(required=True)[ENGINE])


def test_an_unavailable_target_is_a_success_of_its_key(root: Path) -> None:
    order(root, ENGINE, "unavailable")
    build(root)
    found = examine(root, ENGINE)
    assert (found.up_to_date, found.unavailable) == (True, "no GPU")
    assert examine(root, EXPORT).unavailable is None
    found = examine(root, ENGINE, required=True)
    assert (found.failure, found.failed_with_this_key) == (None, False)
    assert reasons(root, ENGINE, required=True) == ["required, but unavailable: no GPU"]
    (root / "build/m/engine/e/engine.bin").write_text("x")
    assert reasons(root, ENGINE, required=True) == [
        "output added by somebody else: m/engine/e/engine.bin"
    ]


def test_a_huge_file_in_place_of_an_output_is_not_read(root: Path) -> None:
    """A terabyte would take minutes."""
    build(root)
    (root / "build" / MODEL).write_bytes(b"")
    os.truncate(root / "build" / MODEL, 1 << 40)
    assert reasons(root, EXPORT) == [f"output edited by hand: {MODEL}"]


# --- records of targets that are unavailable, noisy or up to date ---


def test_the_record_of_a_target_is_there_while_it_is_up_to_date(root: Path) -> None:
    build(root)
    record = make_checker(root).up_to_date_record(actions()[EXPORT])
    assert record is not None
    assert (record.target, record.status) == (EXPORT, "passed")
    assert make_checker(root).up_to_date_record(actions(opset=18)[EXPORT]) is None
    build(root, actions(opset=18))
    later = make_checker(root).up_to_date_record(actions(opset=18)[EXPORT])
    assert later is not None
    assert later.key != record.key


def test_a_noisy_measurement_is_up_to_date_and_no_failure(root: Path) -> None:
    build(root)
    order(root, BENCH, "noise")
    graph = actions(duration=2.0)
    build(root, graph)
    found = make_checker(root).check(graph[BENCH])
    assert (found.up_to_date, found.noise, found.failure) == (True, "a busy neighbor", None)
    (explained,) = explain([found], {}).values()
    assert (explained.state, explained.noise) == ("fresh", "a busy neighbor")
    changed = make_checker(root).check(actions(duration=3.0)[BENCH])
    assert [str(reason) for reason in changed.reasons] == ["duration: 2.0 → 3.0"]
    assert changed.noise is None


def test_outputs_of_a_run_that_broke_are_still_compared(root: Path) -> None:
    build(root)
    (root / f"do-{EXPORT}").write_text("break")
    with pytest.raises(StageError):
        make_executor(root, actions(opset=18))[0].run(EXPORT)
    (root / "build/m/export/model.onnx").write_text("edited")
    found = make_checker(root).check(actions(opset=18)[EXPORT])
    assert [str(reason) for reason in found.reasons] == [
        "last run failed: export:m broke",
        "export.opset: 17 → 18",
        "output edited by hand: m/export/model.onnx",
    ]
