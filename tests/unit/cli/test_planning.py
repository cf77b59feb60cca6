from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from front_doubles import make_session

from buildsys.cli.explain.plan import write_plan
from buildsys.execution.freshness import FRESH, MAY_RERUN, STALE, Explanation
from buildsys.execution.stale_reasons import Reason

WHY = (Reason("config", "export.opset", "17", "18"),)


def one(
    target: str, state: str, expected_s: float | None, *, restorable: bool = False
) -> Explanation:
    return Explanation(target, state, () if state == FRESH else WHY, None, expected_s, restorable)


def plan(root: Path, *steps: Explanation, jobs: int = 1) -> list[str]:
    out = io.StringIO()
    write_plan(make_session(root)[0], steps, out, jobs=jobs, as_json=False)
    return out.getvalue().splitlines()


def plan_json(root: Path, *steps: Explanation, jobs: int = 1) -> dict[str, Any]:
    out = io.StringIO()
    write_plan(make_session(root)[0], steps, out, jobs=jobs, as_json=True)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_steps_are_told_in_order_with_their_times(tmp_path: Path) -> None:
    steps = [
        one("export:net", STALE, 90.0),
        one("reference:net", FRESH, 1.0),
        one("simplify:net", MAY_RERUN, 0.5),
        one("validate:net", STALE, None),
    ]
    assert plan(tmp_path, *steps) == [
        "run        export:net     1:30 min  export.opset: 17 → 18",
        "may rerun  simplify:net      0.5 s  export.opset: 17 → 18",
        "run        validate:net    unknown  export.opset: 17 → 18",
        "3 targets; usual time: 1:30 min for what will run, 0.5 s for what may rerun, not known for 1",
    ]


def test_what_would_be_restored_takes_no_time(tmp_path: Path) -> None:
    steps = [one("export:net", STALE, 90.0, restorable=True), one("reference:net", STALE, 2.0)]
    first, _, total = plan(tmp_path, *steps)
    assert first == "restore  export:net                export.opset: 17 → 18"
    assert total == "2 targets; usual time: 2.0 s for what will run"
    assert plan(tmp_path, steps[0])[-1] == "1 target; nothing has to be run, all is in the store"
    assert [step["restorable"] for step in plan_json(tmp_path, *steps)["targets"]] == [True, False]


def test_steps_that_wait_for_each_other_are_not_sped_up_by_jobs(tmp_path: Path) -> None:
    chain = [
        one("export:net", STALE, 3.0),
        one("simplify:net", STALE, 4.0),
        one("reference:net", STALE, 1.0),
    ]
    found = plan_json(tmp_path, *chain, jobs=4)
    assert (found["expected_s"], found["expected_at_most_s"], found["expected_parallel_s"]) == (
        8.0,
        8.0,
        7.0,
    )
    assert plan(tmp_path, *chain, jobs=4)[-1].endswith(
        "8.0 s for what will run, at best 7.0 s with -n 4"
    )


def test_nothing_known_is_said(tmp_path: Path) -> None:
    assert plan(tmp_path) == ["everything is up to date: nothing would run"]
    alone = plan(tmp_path, one("export:net", STALE, None))
    assert alone[-1] == "1 target; how long it takes is not known, it has never run"
    both = plan(tmp_path, one("export:net", STALE, None), one("reference:net", STALE, None))
    assert both[-1] == "2 targets; how long they take is not known, none has ever run"
