"""Targets of the executor in the history."""

from pathlib import Path
from typing import Any

import pytest
from tiny_project import ALL, ENGINE, EXPORT, make_executor, make_project

from buildsys.errors import BuildsysError
from buildsys.execution.executor import Executor
from buildsys.execution.run_records import Outcome, why_stopped
from buildsys.history.builds import Build
from buildsys.history.database import History
from buildsys.history.recorder import HistoryRecorder
from buildsys.system.git import Checkout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def history_of(root: Path) -> History:
    return History(root / ".buildsys" / "history.db")


def recording(root: Path, warnings: list[str] | None = None, **more: Any) -> Executor:
    def make_recorder() -> HistoryRecorder:
        notify = (warnings if warnings is not None else []).append
        return HistoryRecorder(
            History(root / ".buildsys" / "history.db", notify), Checkout, lambda _: "{}", notify
        )

    return make_executor(root, make_recorder=make_recorder, **more)[0]


def build(root: Path, *targets: str, **more: Any) -> list[Build]:
    """Build targets; return what is recorded of it, oldest first."""
    before = len(history_of(root).builds())
    executor = recording(root, **more)
    for target in targets or ALL:
        if not executor.up_to_date_status(target):
            executor.run(target)
    executor.close()
    found = history_of(root).builds()[::-1]
    return found[before:]


def test_every_target_that_ran_is_recorded_with_its_reason_and_outputs(root: Path) -> None:
    found = build(root)
    assert [(one.target, one.how, one.status) for one in found] == [
        (target, "ran", "passed") for target in ALL
    ]
    export = found[0]
    assert set(export.outputs) == {"model", "result"}
    assert "never-built" in export.why
    assert export.seconds == 0.25
    assert len({one.run for one in found}) == 1


def test_a_run_with_nothing_to_do_records_and_opens_nothing(root: Path) -> None:
    build(root)
    for path in (root / ".buildsys").glob("history.db*"):
        path.unlink()
    executor = recording(root)
    assert all(executor.up_to_date_status(target) for target in ALL)
    executor.close()
    assert not (root / ".buildsys" / "history.db").exists()


def test_failures_are_recorded_with_their_sentence(root: Path) -> None:
    build(root, EXPORT)
    for order, status, reason in (
        ("fail", "failed", "numbers differ"),
        ("break", "error", "engine:m:e broke"),
        ("die", "error", "the worker of engine:m:e crashed"),
    ):
        (root / f"do-{ENGINE}").write_text(order)
        executor = recording(root)
        with pytest.raises(BuildsysError):
            executor.run(ENGINE)
        executor.close()
        last = history_of(root).builds()[0]
        assert (last.target, last.status, last.reason) == (ENGINE, status, reason)
        assert last.outputs == {}


def test_a_run_that_stopped_names_the_failure() -> None:
    passed, failed = (Outcome(f"export:{status}", status, 1.0) for status in ("passed", "failed"))
    ended = {outcome.target: outcome for outcome in (passed, failed)}
    assert why_stopped(ended) == "the run stopped when export:failed failed"
    assert why_stopped({passed.target: passed}) == "the run ended early"
