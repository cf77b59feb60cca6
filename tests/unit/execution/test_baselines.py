"""Baselines of gates: part of the key, stable for an engine that was compared."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tiny_project
from tiny_project import GATE, gated_actions, make_executor

from buildsys.errors import BuildsysError, UsageError
from buildsys.execution.stale_reasons import summarize_reasons
from buildsys.history.database import History
from buildsys.history.recorder import HistoryRecorder
from buildsys.plan.action import Action
from buildsys.system import versions
from buildsys.system.git import Checkout
from buildsys.workers.job import Job

SEEN: list[dict[str, Any]] = []


def gate(job: Job) -> dict[str, Any]:
    """Record the baseline that the stage receives."""
    earlier = job.inputs.get("baseline.engine")
    SEEN.append({**(job.baseline or {}), "content": earlier and earlier.read_text()})
    figures = {"latency": 2.0, "size": float(len(job.inputs["engine"].read_text()))}
    options = {"backend": "onnxruntime"}
    return {"figures": figures, "engine_options": options, "evaluated": "samples"}


@pytest.fixture(autouse=True)
def gate_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny_project.STAGES, "gate", gate)
    SEEN.clear()


def graph(opset: int = 17, environment: str = "", tool: str = "") -> dict[str, Action]:
    fields: Any = {"environment": (environment,) if environment else ()}
    fields |= {"tools": (tool,)} if tool else {}
    return gated_actions(opset, {"engine": {"backend": "onnxruntime"}}, **fields)


def run(root: Path, plan: dict[str, Action]) -> list[str]:
    executor, pool = make_executor(root, plan)
    for target in plan:
        if not executor.up_to_date_status(target):
            executor.run(target)
    executor.close()
    return pool.ran


def test_the_first_build_has_no_baseline_and_is_that_of_the_next(root: Path) -> None:
    assert GATE in run(root, graph())
    assert SEEN[0]["missing"].startswith("there is no earlier build")
    assert GATE in run(root, graph(opset=18))
    assert "opset 17" in SEEN[1]["content"]
    assert SEEN[1]["figures"]["latency"] == 2.0
    assert SEEN[1]["evaluated"] == "samples"
    assert SEEN[1]["reason"] == ""


def test_a_passed_build_does_not_make_its_own_gate_stale(root: Path) -> None:
    run(root, graph())
    assert run(root, graph()) == []
    run(root, graph(opset=18))
    assert run(root, graph(opset=18)) == []


def test_going_back_restores_the_earlier_verdict(root: Path) -> None:
    for opset in (17, 18, 19):
        run(root, graph(opset=opset))
    assert run(root, graph(opset=18)) == []  # restored
    assert len(SEEN) == 3
    assert run(root, graph(opset=20))
    assert "opset 18" in SEEN[-1]["content"]  # the engine in use before


@pytest.mark.parametrize("order", ["noise", "fail", "break"])
def test_only_a_build_that_passed_is_a_baseline(root: Path, order: str) -> None:
    run(root, graph())
    (root / f"do-{GATE}").write_text(order)
    for number in range(2):  # a failed one stays stale
        with suppress(BuildsysError):
            assert (GATE in run(root, graph(opset=18))) == (number == 0 or order != "noise")
        assert "opset 17" in SEEN[-1]["content"]
    (root / f"do-{GATE}").unlink()
    run(root, graph(opset=19))
    assert "opset 17" in SEEN[-1]["content"]


def test_the_baseline_is_in_the_key_and_explained(root: Path) -> None:
    run(root, graph())
    run(root, graph(opset=18))
    executor, _ = make_executor(root, graph(opset=18))
    record = executor.ledger.lookup(GATE)
    assert record is not None
    assert record.parts["baseline:engine"] != "none"
    executor.ledger.forget(GATE, keep_records=True)
    assert not executor.up_to_date_status(GATE)
    key = executor.examine(GATE).key
    assert key is not None
    assert key.parts["baseline:engine"] == record.parts["baseline:engine"]
    assert summarize_reasons(executor.examine(GATE).reasons) == "forgotten by `doit forget`"
    executor.close()


def test_forgetting_a_gate_does_not_move_its_baseline(root: Path) -> None:
    run(root, graph())
    (root / f"do-{GATE}").write_text("fail")  # the engine of opset 18 is slow
    with suppress(BuildsysError):
        run(root, graph(opset=18))
    for order_of_gate in ("fail", ""):
        executor, _ = make_executor(root, graph(opset=18))
        executor.ledger.forget(GATE, keep_records=True)
        executor.close()
        (root / f"do-{GATE}").write_text(order_of_gate)
        with suppress(BuildsysError):
            assert run(root, graph(opset=18)) == [GATE]
        assert "opset 17" in SEEN[-1]["content"]
    assert run(root, graph(opset=18)) == []


@pytest.mark.parametrize("order", ["fail", "noise"])
def test_an_accepted_build_is_the_baseline_of_itself_and_of_later_builds(
    root: Path, order: str
) -> None:
    run(root, graph())
    (root / f"do-{GATE}").write_text(order)
    with suppress(BuildsysError):
        run(root, graph(opset=18))
    history = History(root / ".buildsys" / "history.db")
    executor, _ = make_executor(
        root,
        graph(opset=18),
        make_recorder=lambda: HistoryRecorder(history, Checkout, lambda _: "{}"),
    )
    executor.accept(GATE, "a wider network")
    (accepted,) = history.builds(target=GATE)
    assert (accepted.status, accepted.reason) == ("accepted", "a wider network")
    assert summarize_reasons(executor.examine(GATE).reasons) == "baseline engine changed"
    executor.close()
    (root / f"do-{GATE}").unlink()
    assert run(root, graph(opset=18)) == [GATE]
    assert (SEEN[-1]["accepted"], SEEN[-1]["content"]) == ("a wider network", None)
    assert run(root, graph(opset=18)) == []
    assert GATE in run(root, graph(opset=19))
    assert "opset 18" in SEEN[-1]["content"]


def test_only_a_rejected_build_can_be_accepted(root: Path) -> None:
    executor, _ = make_executor(root, graph())
    with pytest.raises(UsageError, match="gate:m:e has not rejected this build"):
        executor.accept(GATE, "never built")
    executor.close()
    run(root, graph())
    executor, _ = make_executor(root, graph())
    with pytest.raises(UsageError, match="`buildsys build gate:m:e` checks it"):
        executor.accept(GATE, "it has passed")
    executor.close()


def test_builds_of_another_environment_are_no_baseline(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run(root, graph(environment="speed"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run(root, graph(opset=18, environment="speed"))
    assert SEEN[-1]["missing"].startswith("there is no earlier build with these")
    run(root, graph(opset=19, environment="speed"))
    assert "opset 18" in SEEN[-1]["content"]


def test_other_libraries_make_another_build_of_the_same_engine(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_numpy(version: str) -> None:
        monkeypatch.setattr(
            versions, "tool_versions", lambda names, *_: dict.fromkeys(names, version)
        )

    set_numpy("1")
    run(root, graph(tool="numpy"))
    set_numpy("2")
    assert run(root, graph(tool="numpy")) == [GATE]
    assert SEEN[0]["hint"] == "the next build is compared with this one"
    assert SEEN[1]["reason"] == "numpy changed since the baseline was built"
    assert SEEN[1]["figures"]["latency"] == 2.0
    assert run(root, graph(tool="numpy")) == []  # it stays compared
    set_numpy("1")
    assert run(root, graph(tool="numpy")) == []  # restored


def test_a_baseline_without_options_or_that_the_store_has_lost_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(tiny_project.STAGES, "gate", lambda job: {"figures": {}})
        run(root, graph(opset=16))
    run(root, graph())
    assert SEEN[-1]["reason"] == "the options of the baseline are not known"
    assert SEEN[-1]["content"] is None
    for path in (root / ".buildsys/store").rglob("*"):
        if path.is_file():
            path.unlink()
    run(root, graph(opset=18))
    assert SEEN[-1]["reason"] == "the store no longer has the baseline"
    assert SEEN[-1]["content"] is None
    assert json.loads((root / "build/m/gate/e.json").read_text())["status"] == "passed"
