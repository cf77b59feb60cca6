import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_doubles import make_session

from buildsys.cli.commands.plan import print_plan
from buildsys.execution import local_runs
from buildsys.execution.freshness import FRESH, MAY_RERUN, STALE, Freshness
from buildsys.execution.stale_reasons import StaleReason
from buildsys.plan.action import Action

Plan = Callable[..., str]
WHY = (StaleReason("config", "export.opset", "17", "18"),)


def one(
    target: str, state: str, expected_s: float | None, *, restorable: bool = False
) -> Freshness:
    return Freshness(
        target,
        up_to_date=state != STALE,
        reasons=() if state == FRESH else WHY,
        expected_s=expected_s,
        restorable=restorable,
    )


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plan:
    def printed(*steps: Freshness, as_json: bool = False) -> str:
        print_plan(make_session(tmp_path)[0], steps, as_json=as_json)
        return capsys.readouterr().out

    return printed


def test_steps_are_printed_in_order_with_their_times(plan: Plan) -> None:
    steps = [
        one("export:net", STALE, 90.0),
        one("reference:net", FRESH, 1.0),
        one("simplify:net", MAY_RERUN, 0.5),
        one("validate:net", STALE, None),
    ]
    assert plan(*steps).splitlines() == [
        "run        export:net    1 min 30 s  export.opset: 17 → 18",
        "may rerun  simplify:net      500 ms  export.opset: 17 → 18",
        "run        validate:net     unknown  export.opset: 17 → 18",
        "3 targets; usual time: 1 min 30 s for what will run, 500 ms for what may rerun, "
        "unknown for 1",
    ]
    assert plan(steps[1]) == "everything is up to date: nothing would run\n"
    assert plan().startswith("no targets")


def test_targets_that_cannot_run_here_follow_with_the_reason(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def obstacle(action: Action, project: Path) -> str:
        return {"engine:net:rtx": "no library; install it", "bench:net:ort": "busy"}.get(
            action.target, ""
        )

    monkeypatch.setattr(local_runs, "expected_obstacle", obstacle)
    names = ("engine:net:ort", "bench:net:ort", "engine:net:rtx", "verify:net:rtx", "bench:net:rtx")
    steps = [one(name, STALE, 1.0) for name in names]
    assert plan(*steps).splitlines()[-2:] == [
        "cannot run on this machine: bench:net:ort: busy",
        "cannot run on this machine: engine:net:rtx: no library; install it",
    ]
    found = json.loads(plan(*steps, as_json=True))["expected_unavailable"]
    assert found == {"bench:net:ort": "busy"} | dict.fromkeys(names[2:], "no library; install it")


def test_restored_targets_take_no_time(plan: Plan) -> None:
    steps = [one("export:net", STALE, 90.0, restorable=True), one("reference:net", STALE, 2.0)]
    first, _, total = plan(*steps).splitlines()
    assert first == "restore  export:net                 export.opset: 17 → 18"
    assert total == "2 targets; usual time: 2.00 s for what will run"
    assert (
        plan(steps[0]).splitlines()[-1]
        == "1 target; nothing has to run, everything is in the store"
    )
    found = json.loads(plan(*steps, as_json=True))
    assert [step["restorable"] for step in found["targets"]] == [True, False]
