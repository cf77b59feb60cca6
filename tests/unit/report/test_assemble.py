import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from html_page import Page, page_of
from tiny_results import NO_GPU, Results

from buildsys.report.assemble import assemble
from buildsys.report.engines import engine_origin
from buildsys.report.html.pages import render_model
from buildsys.report.markdown import render
from buildsys.report.report_types import Report, as_json
from buildsys.report.result_files import parse
from buildsys.stages.engine.result import EngineResult

NAN = float("nan")


def report_on(results: Results) -> Report:
    return assemble("tiny", results.manifest, results.inputs, {})


WRONG = {"max_abs": NAN, "relative": NAN, "cosine": NAN, "top1": None, "passed": False}
PROFILES = [
    {"profile": 0, "cases": {"min": {"scores": {"passed": True}}}},
    {"profile": 1, "cases": {}},
]
VERDICTS: dict[str, tuple[Callable[[Results], None], str]] = {
    "all passed": (lambda _: None, "PASSED: all 12 targets passed"),
    "a case left out, and a place that is accepted": (
        lambda results: results.with_doubts(),
        "PASSED, 1 branch fixed at net.py:12, state lost at net.py:20, 4 of 5 cases compared,"
        " no weights for head.bias, no informative case for scores: all",
    ),
    "unavailable": (
        lambda results: results.without_gpu(),
        "PARTIAL: 10 of 12 targets passed; 2 unavailable: verify:tiny:rtx-fp16, bench",
    ),
    "unavailable, with a branch": (
        lambda results: (results.with_doubts(), results.without_gpu())[1],
        "PARTIAL, 1 branch fixed at net.py:12, state lost at net.py:20, 4 of 5 cases compared,"
        " no weights for head.bias, no informative case for scores: 10",
    ),
    "missing": (
        lambda results: results.inputs["validate:tiny"].unlink(),
        "PARTIAL: 11 of 12 targets passed; 1 did not run: validate:tiny",
    ),
    "failed": (
        lambda results: results.failed("validate:tiny", "output scores in case max is off"),
        "FAILED: 1 of 12 targets failed: validate:tiny",
    ),
    "against its own numbers": (
        lambda results: results.passed("verify:tiny:ort-cpu", cases={"min": {"scores": WRONG}}),
        "FAILED: verify:tiny:ort-cpu has passed, although output scores in case min is not within",
    ),
    "empty": (
        lambda results: results.passed("validate:tiny", graphs={}),
        "FAILED: validate:tiny has passed without comparing anything",
    ),
    "empty profile": (
        lambda results: results.passed("verify:tiny:rtx-fp16", profiles=PROFILES),
        "FAILED: verify:tiny:rtx-fp16 has passed without comparing anything in profile 1",
    ),
    **{
        f"status {status}": (
            lambda results, status=status: results.passed("export:tiny", status=status),
            "FAILED: 1 of 12 targets failed: export:tiny",
        )
        for status in ("", "ok", "PASSED")
    },
}


@pytest.mark.parametrize("case", VERDICTS)
def test_the_verdict_is_passed_only_if_everything_ran_and_was_compared(
    results: Results, case: str
) -> None:
    change, text = VERDICTS[case]
    change(results)
    report = report_on(results)
    assert report.verdict.text.startswith(text)
    assert report.verdict.status == re.split("[:,]", text)[0].lower()
    if case != "all passed":
        results.without_gpu()
        results.failed("export:tiny", "first")
        failed = report_on(results)
        assert failed.verdict.text.startswith("FAILED: ")
        assert "first" in {line.reason for line in failed.summary}


def test_a_target_that_did_not_run_has_its_reason(results: Results) -> None:
    results.without_gpu()
    report = report_on(results)
    line = next(line for line in report.summary if line.target == "verify:tiny:rtx-fp16")
    assert (line.status, line.outcome, line.reason, line.hint) == ("unavailable", "", *NO_GPU)
    engine = next(line for line in report.engines if line.name == "rtx-fp16")
    assert (engine.built, engine.verified, engine.timed) == ("passed", "unavailable", "unavailable")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"target": "export:other", "status": "passed"}', "\udcff"]
)
def test_an_unusable_result_fails_the_verdict(results: Results, content: str) -> None:
    results.inputs["export:tiny"].write_bytes(content.encode(errors="surrogateescape"))
    report = report_on(results)
    assert report.verdict.status == "failed"
    assert report.verdict.text == "FAILED: 1 of 12 targets failed: export:tiny"
    assert report.summary[0].reason.startswith("the result file")


def test_the_numbers_of_a_conversion_are_among_the_checks(results: Results) -> None:
    report = report_on(results)
    check = next(check for check in report.checks if check.target == "convert:tiny:fp16")
    assert check.subject == "golden outputs against the rounded fp16 graph"
    assert [(line.subject, line.case, line.relative) for line in check.comparisons] == [
        ("fp16", "min", 2e-3), ("fp16", "opt", 3e-3), ("fp16", "max", 2.5e-3),
        ("fp16", "odd", 2e-3),
    ]  # fmt: skip


def test_the_engine_comes_before_its_baseline(results: Results) -> None:
    first, second = report_on(results).bench[:2]
    assert (first.contender, first.p50_ms) == ("engine", 2.1)
    assert (second.contender, second.p50_ms) == ("torch", 4.2)


def test_layers_are_summed_over_kinds_and_devices_are_in_words(results: Results) -> None:
    missing = {"kind": "gpu", "missing": "libcuda.so.1 is not installed"}
    results.passed("engine:tiny:rtx-fp16", layers={"convolution": 2, "shuffle": 3}, device=missing)
    results.passed("engine:tiny:ort-cpu", device={"kind": "cpu", "name": "AMD EPYC", "cores": 2})
    ort, rtx = report_on(results).engines
    assert (rtx.layers, rtx.device) == (5, "not on this machine: libcuda.so.1 is not installed")
    assert (ort.layers, ort.device) == (7, "AMD EPYC, 2 cores")


def test_a_benchmark_that_stays_noisy_is_neither_passed_nor_a_headline(results: Results) -> None:
    path = results.inputs["bench:tiny:ort-cpu"]
    content = json.loads(path.read_text())
    content["cases"]["opt"]["noisy"] = ["other processes used 40 %"]
    for contender in content["cases"]["opt"]["contenders"].values():
        contender["noisy"] = "other processes used 40 %"
    content |= {"status": "noisy", "reason": "other processes used 40 %"}
    content["noisy"] = ["other processes used 40 %", "the median is unknown"]
    path.write_text(json.dumps(content))
    report = report_on(results)
    assert report.verdict.status == "partial"
    assert report.verdict.text.endswith("1 noisy: bench:tiny:ort-cpu")
    (line,) = (line for line in report.summary if line.target == "bench:tiny:ort-cpu")
    assert (line.status, line.reason) == ("noisy", "other processes used 40 %")
    assert line.outcome == "noisy, no headline (opt: p50 2.1 ms)"
    assert {line.noisy for line in report.bench if line.engine == "ort-cpu"} == {True}
    assert "NOISY" in render(report)
    warnings = [text for text in report.warnings if text.startswith("bench:tiny:ort-cpu")]
    assert warnings == ["bench:tiny:ort-cpu: the median is unknown"]  # the first is the reason


def test_gates_are_a_table_with_both_figures_and_the_interval(results: Results) -> None:
    check = {
        "metric": "latency", "status": "failed", "before": 0.0021, "after": 0.00225,
        "change": 0.0714, "low": 0.06, "high": 0.08, "text": "latency is worse",
        "tolerance": 0.05, "limit": 0.003, "confidence": 0.98,
    }  # fmt: skip
    target = "gate:tiny:ort-cpu"
    results.inputs[target] = results.build / "tiny/gate/ort-cpu.json"
    results.write(target, {"status": "failed", "reason": "latency is worse", "checks": [check]})
    report = report_on(results)
    assert [table.title for table in report.tables] == ["Gates"]
    row = next(row for row in render(report).splitlines() if row.startswith("| ort-cpu | latency"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    figures = ["2.10 ms", "2.25 ms", "+7.1 %", "+6.0 % to +8.0 %", "5.0 %", "≤ 3.00 ms"]
    assert cells[2:] == ["FAILED", *figures]
    assert report.verdict.text == f"FAILED: 1 of 13 targets failed: {target}"


def test_provenance_names_all_versions_and_no_path_of_this_machine(results: Results) -> None:
    results.passed("export:tiny", toolchain={"torch": "2.11.0"})
    report = report_on(results)
    assert report.provenance.versions["torch"] == "2.11.0 and 2.14.1"
    assert (
        next(line.log for line in report.summary if line.stage == "simplify")
        == "simplify/graph.log"
    )
    assert str(results.build) not in json.dumps(as_json(report))


def test_results_without_content_still_give_a_report(results: Results) -> None:
    for target in results.inputs:
        results.write(target, {"status": "passed"})
    report = report_on(results)
    assert report.verdict.status == "failed"  # the checks passed without comparing anything
    assert report.bench == ()
    assert len(report.summary) == len(results.inputs) + 1  # itself


def test_engine_provenance_lists_libraries_and_plugins(results: Results) -> None:
    rtx = next(engine for engine in report_on(results).engines if engine.name == "rtx-fp16")
    assert rtx.origin == {
        "built with": "tensorrt_rtx 1.7.1.116, platform Linux x86_64",
        "precision of the layers": "90.0 % float16, 10.0 % float32",
        "custom operators": (
            "demo::swish plugin swish_plugin.py, demo::clip library clip.so, trt::Nms plugin"
        ),
        "optimization profiles": (
            "0: image [1, 3] to [16, 3], optimized for [8, 3]; 1: image [1, 3]"
        ),
        "build": "prepare 100 ms, build 4.00 s, read back 100 ms",
    }
    page = Page(render_model(page_of(report_on(results))))
    assert "precision of the layers 90.0 % float16, 10.0 % float32" in page.text


def test_verify_is_reported_per_profile(results: Results) -> None:
    def profile(number: int, *cases: str) -> dict[str, Any]:
        figures = {
            "scores": {"max_abs": 0.1, "relative": 1e-3, "cosine": 1.0, "top1": 1.0, "passed": True}
        }
        return {"profile": number, "ranges": {}, "cases": dict.fromkeys(cases, figures)}

    results.passed(
        "verify:tiny:rtx-fp16", profiles=[profile(0, "min", "opt"), profile(1, "opt", "batch=12")],
        dims={"min": {"batch": 1}, "opt": {"batch": 8}, "batch=12": {"batch": 12}},
    )  # fmt: skip
    check = next(
        check for check in report_on(results).checks if check.target == "verify:tiny:rtx-fp16"
    )
    assert [(line.subject, line.case, line.dims) for line in check.comparisons] == [
        ("rtx-fp16, profile 0", "min", "batch 1"),
        ("rtx-fp16, profile 0", "opt", "batch 8"),
        ("rtx-fp16, profile 1", "opt", "batch 8"),
        ("rtx-fp16, profile 1", "batch=12", "batch 12"),
    ]
    rows = [row[:2] for row in Page(render_model(page_of(report_on(results)))).rows]
    assert ["rtx-fp16, profile 1", "opt (batch 8)"] in rows
    assert ["rtx-fp16, profile 1", "batch=12"] in rows


def test_engine_provenance_names_operators_outside_the_delegate() -> None:
    delegated = {"share": 0.8, "operators": {"convolution": 4}, "portable": {"mean": 1}}
    lines = engine_origin(parse({"delegated": delegated}, EngineResult), [])
    assert lines["operators in the delegate"] == "80 %; in portable kernels: 1 mean"
