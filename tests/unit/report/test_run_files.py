"""JUnit XML and Markdown of a run."""

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from buildsys.report.run_results import (
    BrokenManifest,
    RunResults,
    TargetResult,
    junit_xml,
    run_summary,
)

# attributes that the schemas of Ant (windyroad) and Jenkins (junit-10) require or allow
SUITE = {
    "id", "name", "package", "timestamp", "hostname", "tests", "failures", "errors", "skipped",
    "time",
}  # fmt: skip
CASE = {"name", "classname", "time"}
PROBLEMS = {"failure": {"type", "message"}, "skipped": {"message"}}


def target(name: str, status: str, **fields: Any) -> TargetResult:
    stage, model, variant = (*name.split(":"), "")[:3]
    return TargetResult(name, model, stage, variant, status, **fields)


RUN = RunResults(
    started="2026-11-22T02:00:00Z",
    seconds=83.2,
    host="gpu01",
    targets=(
        target("export:a", "passed", seconds=1.5, why="never built", figure="opset 17",
               log="a.log"),
        target("engine:a:ort", "up-to-date"),
        target("verify:a:ort", "failed", seconds=0.25, error="CheckFailed", owner="vision team",
               reason="relative error 0.5; raise verify.fp32.rtol\ndetails: x", log="v.log",
               last_passed="2026-11-21T02:00:00Z", regressed=True),
        target("bench:a:ort", "not-run", reason="needs verify:a:ort, which failed"),
        target("export:b", "restored", first_failure="the download timed out"),
        target("engine:b:trt", "unavailable", reason="no GPU; install a driver"),
        target("verify:b:trt", "ignored", reason="excluded by `doit ignore`"),
        target("bench:b:trt", "noisy", reason="load on the machine"),
        target("report:b", "failed", reason="disk full"),
    ),
    manifests=(BrokenManifest("configs/models/c.yaml", ("c.yaml:1:1: modle: unknown field",)),),
)  # fmt: skip


def parse(run: RunResults) -> ElementTree.Element:
    """Return JUnit XML, checked against what both schemas demand."""
    root = ElementTree.fromstring(junit_xml(run))
    assert (root.tag, root.attrib) == ("testsuites", {})
    for number, suite in enumerate(root):
        assert (suite.tag, set(suite.attrib)) == ("testsuite", SUITE)
        assert suite.get("id") == str(number)
        tags = [child.tag for child in suite]
        cases = suite.findall("testcase")
        assert tags == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
        assert suite.get("tests") == str(len(cases))
        for kind in ("failure", "skipped"):
            count = sum(case.find(kind) is not None for case in cases)
            assert suite.get({"failure": "failures"}.get(kind, kind)) == str(count)
        for case in cases:
            assert set(case.attrib) == CASE
            assert len(case) <= 1
            for problem in case:
                assert set(problem.attrib) == PROBLEMS[problem.tag]
    return root


def test_a_run_is_one_suite_per_model_and_one_case_per_target() -> None:
    root = parse(RUN)
    assert [suite.get("name") for suite in root] == ["manifests", "a", "b"]
    names = [case.get("name") for case in root.iter("testcase")]
    assert names == ["configs/models/c.yaml", *(one.target for one in RUN.targets)]
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert cases["verify:a:ort"].get("classname") == "a.verify"
    assert cases["verify:a:ort"].get("time") == "0.250"
    failure = cases["verify:a:ort"][0]
    assert failure.get("type") == "CheckFailed"
    assert failure.get("message") == "relative error 0.5; raise verify.fp32.rtol"
    assert failure.text == ("relative error 0.5; raise verify.fp32.rtol\ndetails: x\nlog: v.log")
    kinds = {name: [child.tag for child in case] for name, case in cases.items()}
    assert kinds["export:a"] == kinds["engine:a:ort"] == kinds["export:b"] == []
    assert kinds["engine:b:trt"] == kinds["bench:a:ort"] == kinds["verify:b:trt"] == ["skipped"]
    assert kinds["bench:b:trt"] == ["skipped"]
    assert kinds["configs/models/c.yaml"] == kinds["report:b"] == ["failure"]
    assert root[1].find("properties/property").attrib == {"name": "owner", "value": "vision team"}


def test_an_unavailable_target_that_passed_before_is_a_failure() -> None:
    lost = target("engine:a:trt", "unavailable", reason="no GPU", regressed=True)
    root = parse(replace(RUN, targets=(lost,), manifests=()))
    assert root.find("testsuite/testcase/failure").get("type") == "unavailable"


@pytest.mark.parametrize("status", ["running", "interrupted", "refused"])
def test_a_run_without_an_end_is_not_green(status: str) -> None:
    root = parse(RunResults("2026-11-22T02:00:00Z", 0.0, "", status=status, error="killed"))
    (case,) = root.iter("testcase")
    assert (case.get("name"), case[0].tag, case[0].get("message")) == ("run", "failure", "killed")
    assert root[0].get("hostname") == "localhost"


def test_hostile_text_is_escaped_and_invalid_characters_are_removed() -> None:
    text = ']]> <b a="1">&amp; \x00\x1b[31m\ud800\ufffe\r end'
    found = replace(RUN.targets[2], target='verify:<&">:\x07', reason=text, owner=text, log=text)
    root = parse(replace(RUN, targets=(found,), host=text))
    (case,) = root[1].iter("testcase")
    assert case.get("name") == 'verify:<&">:\N{REPLACEMENT CHARACTER}'
    kept = ']]> <b a="1">&amp;'
    assert case[0].get("message").startswith(kept)
    assert case[0].text.startswith(kept)


def test_the_summary_lists_what_needs_somebody_first() -> None:
    text = run_summary(RUN, "Nightly run")
    counts = "1 broken manifest, 1 failed, 1 regressed, 2 never ran, 1 unavailable, 1 noisy"
    assert text.splitlines()[0] == f"# Nightly run: {counts}"
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    titles = "Broken manifests/Failed/Regressed/Noisy/Flaky: passed when repeated/Never ran/Built"
    assert headings == [f"## {title}" for title in titles.split("/")]
    assert "last passed 2026-11-21; log: `v.log`" in text
    assert "vision team" in text


def test_a_long_table_is_cut() -> None:
    many = tuple(target(f"export:m{number}", "failed", reason="x") for number in range(100))
    text = run_summary(replace(RUN, targets=many), "Build")
    assert "and 75 more" in text
    assert len(text.splitlines()) < 60
