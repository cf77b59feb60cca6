"""Lines on stale outputs after a failed run."""

import json
from pathlib import Path

from cli_doubles import make_session, write_result

from buildsys.cli.failure_report import StaleOutputs, report_failure
from buildsys.execution.run_records import Outcome

FOLDER = "build/net"


def test_the_line() -> None:
    several = StaleOutputs("net", ["engine:net:ort", "report:net"])
    assert several.describe(FOLDER) == "build/net: 2 outputs are stale: engine ort, report"
    many = StaleOutputs("net", [f"engine:net:e{number}" for number in range(9)])
    assert many.describe(FOLDER).endswith(
        ": engine e0, engine e1, engine e2, engine e3, engine e4, engine e5 and 3 more"
    )
    unknown = StaleOutputs("net", problem="no space is left").describe(FOLDER)
    assert unknown == "build/net: cannot list stale outputs: no space is left"
    assert StaleOutputs("net", report="net/report/report.md").describe(FOLDER) == ""


def test_targets_that_failed_and_those_downstream_are_stale(tmp_path: Path) -> None:
    session, executor = make_session(tmp_path)
    for target in session.actions:
        write_result(session, target, status="passed", started="2026-11-20T14:03:11Z")
        result = session.project.build / session.actions[target].outputs["result"].path
        result.write_text(json.dumps({**json.loads(result.read_text()), "target": target}))
    executor.fresh = {"export:net", "reference:net", "simplify:net", "engine:net:ort"}
    session.finished["validate:net"] = Outcome("validate:net", "failed", 1.0, "y differs")
    (found,) = report_failure(session, ["net"])
    assert found.report == "net/report/report.md"
    assert tuple(found.targets)[:2] == ("engine:net:rtx", "verify:net:ort")
    assert not set(found.targets) & {*executor.fresh, "report:net"}
    text = (session.project.build / found.report).read_text()
    assert "FAILED: 1 of 11 targets failed: validate:net" in text


def test_nothing_is_stale_if_everything_is_up_to_date(tmp_path: Path) -> None:
    session, executor = make_session(tmp_path)
    for target in session.actions:
        write_result(session, target, status="passed")
    executor.fresh = set(session.actions)
    report = (session.project.build / "net/report/report.md").read_bytes()
    assert report_failure(session, ["net"]) == []
    assert (session.project.build / "net/report/report.md").read_bytes() == report


def test_an_error_is_reported_and_not_raised(tmp_path: Path) -> None:
    session, executor = make_session(tmp_path)

    def break_down(target: str) -> None:
        raise AttributeError("nobody expected this")

    executor.examine = break_down  # type: ignore[method-assign,assignment]
    (found,) = report_failure(session, ["net"])
    assert found.problem.startswith("unexpected AttributeError: nobody expected this; traceback: ")
    assert "nobody expected this" in Path(found.problem.rpartition("traceback: ")[2]).read_text()
