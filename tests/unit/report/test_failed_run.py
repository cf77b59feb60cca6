"""The report on an unsuccessful run."""

import json

from tiny_results import Results

from buildsys.report.assemble import TargetProblem, assemble_after_failure
from buildsys.report.markdown import render
from buildsys.report.report_types import BuildVerdict, Report, as_json

NOTICE = "Report on the run that ended 2026-11-20 14:03 UTC"


def report_on(results: Results, **short: TargetProblem) -> Report:
    found = {name.replace("__", ":").replace("_", "-"): one for name, one in short.items()}
    return assemble_after_failure("tiny", results.manifest, results.inputs, found, NOTICE)


def test_results_of_stale_targets_are_left_out(results: Results) -> None:
    not_run = TargetProblem("not run: it needs export:tiny")
    failed = TargetProblem("the file is none\nlook at it", failed=True)
    report = report_on(
        results, export__tiny=failed, engine__tiny__ort_cpu=not_run, bench__tiny__ort_cpu=not_run
    )
    assert report.verdict.status == "failed"
    assert report.verdict.text.startswith("FAILED: 1 of 12 targets failed: export:tiny")
    lines = {line.target: line for line in report.summary}
    assert (lines["export:tiny"].status, lines["export:tiny"].hint) == ("failed", "look at it")
    assert (lines["bench:tiny:ort-cpu"].status, lines["bench:tiny:ort-cpu"].outcome) == (
        "stale",
        "",
    )
    assert lines["simplify:tiny"].status == "passed"
    assert "ort-cpu" not in {timing.engine for timing in report.bench}
    text = render(report)
    assert text.splitlines()[:5:4] == ["# tiny: build failed", f"{NOTICE}."]
    assert as_json(report)["notice"] == NOTICE


def test_a_failed_check_keeps_its_numbers(results: Results) -> None:
    path = results.inputs["validate:tiny"]
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "status": "failed", "reason": "y differs"})
    )
    report = report_on(results, validate__tiny=TargetProblem("y differs; details: …", failed=True))
    (check,) = [check for check in report.checks if check.target == "validate:tiny"]
    assert (report.verdict.text, len(check.comparisons) > 0) == (
        "FAILED: 1 of 12 targets failed: validate:tiny",
        True,
    )


def test_without_a_failure_it_is_stale(results: Results) -> None:
    report = report_on(results, verify__tiny__ort_cpu=TargetProblem("not run: the run ended early"))
    assert (report.verdict.status, report.verdict.text) == (
        "stale", "STALE: 1 of 12 targets are not up to date"
    )  # fmt: skip
    report = report_on(results, bench__tiny__ort_cpu=TargetProblem("never built"))
    text = "INCOMPLETE: 1 of 12 targets were never built"
    assert report.verdict == BuildVerdict("partial", text)


def test_a_failed_report_target_fails_the_verdict(results: Results) -> None:
    report = report_on(results, report__tiny=TargetProblem("the worker crashed", failed=True))
    assert report.verdict.text == "FAILED: report:tiny: the worker crashed"


def test_a_model_without_any_result_was_not_built(results: Results) -> None:
    for path in results.inputs.values():
        path.unlink()
    problems = {target: TargetProblem("never built") for target in results.inputs}
    report = assemble_after_failure("tiny", results.manifest, results.inputs, problems, "")
    assert report.verdict.status == "absent"
    assert report.verdict.text == "NOT BUILT: there are no results yet"
