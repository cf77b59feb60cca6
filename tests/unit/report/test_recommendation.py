from __future__ import annotations

import re

import pytest
from tiny_results import Results, bench

from buildsys.manifest.default_limits import AGREEMENT_LIMITS
from buildsys.report.assemble import assemble
from buildsys.report.checks import LIMITS, error_margin
from buildsys.report.formatting import TIMES
from buildsys.report.html.pages import ModelPage, render_model
from buildsys.report.markdown import render
from buildsys.report.ranking import headline
from buildsys.report.report_types import Check, ComparisonLine, Recommendation


def recommendation(results: Results) -> Recommendation:
    found = assemble("tiny", results.manifest, results.inputs, {}).recommendation
    assert found is not None
    return found


def set_latencies(results: Results, **p50_ms: float) -> None:
    content = bench(None, **p50_ms)
    for name, time in p50_ms.items():
        own = content["cases"]["opt"]["contenders"][name]
        own["p50_interval_ms"] = [time * 0.99, time * 1.01]
    results.passed("bench:tiny:ort-cpu", **content)


def test_the_fastest_verified_engine_is_recommended(results: Results) -> None:
    found = recommendation(results)
    assert (found.engine, found.case) == ("rtx-fp16", "opt")
    assert found.why == "It is the first of 2 verified engines by latency (case opt)."
    assert found.fastest == found.timing


def test_a_faster_baseline_is_named(results: Results) -> None:
    results.without_gpu()
    set_latencies(results, engine=2.0, torch=6.0, torch_compile=1.6)
    found = recommendation(results)
    assert found.engine == "ort-cpu"
    assert found.why == (
        f"It is the only verified engine (case opt). torch.compile is 1.25{TIMES} faster than this"
        " engine (p50 1.60 ms)."
    )
    assert found.fastest is not None
    assert found.fastest.contender == "torch_compile"


def test_overlapping_intervals_are_no_difference(results: Results) -> None:
    results.without_gpu()
    set_latencies(results, engine=2.0, torch=1.99)
    assert recommendation(results).why == "It is the only verified engine (case opt)."


def test_an_engine_without_verification_is_not_recommended(results: Results) -> None:
    results.without_gpu()
    results.unavailable("verify:tiny:ort-cpu")
    found = recommendation(results)
    assert (found.engine, found.timing) == ("", None)
    assert found.why.startswith(
        "No engine is verified with a steady benchmark: ort-cpu (unavailable: no NVIDIA GPU"
    )
    results.unavailable("engine:tiny:ort-cpu")
    results.unavailable("engine:tiny:rtx-fp16")
    assert recommendation(results).why == "No engine has been built."


def test_the_margin_is_that_of_the_output_closest_to_its_limit(results: Results) -> None:
    results.without_gpu()
    margin = recommendation(results).margin
    assert margin is not None
    assert (margin.measure, margin.value, margin.limit) == ("relative error", 3e-6, 1e-4)
    assert margin.place == "case max, output scores"
    assert margin.used == pytest.approx(0.03)


def test_the_rounding_of_a_cosine_is_no_error() -> None:
    figures = {"max_abs": 0.0, "relative": 0.0, "cosine": 1 - 2e-16, "top1": None}
    line = ComparisonLine("engine e", "opt", "y", **figures, passed=True)
    limits = {"rtol": 1e-3, "cosine": 0.9999}
    check = Check("verify:m:e", "engine e", "passed", limits, (line,), ())
    margin = error_margin(check)
    assert margin is not None
    assert (margin.measure, margin.used) == ("relative error", 0.0)


def test_every_limit_of_a_check_has_a_title() -> None:
    assert LIMITS.keys() == {"rtol", "cosine", "atol", "top1", *AGREEMENT_LIMITS["int8"]}


def test_a_model_without_engines_has_no_recommendation(results: Results) -> None:
    results.manifest["engines"] = []
    for target in [one for one in results.inputs if one.count(":") == 2]:
        del results.inputs[target]
    assert assemble("tiny", results.manifest, results.inputs, {}).recommendation is None


@pytest.mark.parametrize("torch_ms", [1.0, 6.0])
def test_a_noisy_baseline_is_not_compared(results: Results, torch_ms: float) -> None:
    results.without_gpu()
    content = bench(None, engine=2.0, torch=torch_ms)
    content["cases"]["opt"]["contenders"]["torch"]["noisy"] = "only known within ±30 %"
    results.passed("bench:tiny:ort-cpu", **content)
    found = recommendation(results)
    assert (found.engine, found.why) == ("ort-cpu", "It is the only verified engine (case opt).")
    assert found.fastest == found.timing


@pytest.mark.parametrize("status", ["passed", "noisy"])
def test_no_engine_is_recommended_if_all_benchmarks_are_noisy(
    results: Results, status: str
) -> None:
    for name, p50_ms in (("ort-cpu", 2.123), ("rtx-fp16", 0.1)):
        content = bench(None, engine=p50_ms)
        content["cases"]["opt"]["contenders"]["engine"]["noisy"] = "only known within ±30 %"
        results.write(f"bench:tiny:{name}", {"status": status, **content})
    report = assemble("tiny", results.manifest, results.inputs, {})
    found = report.recommendation
    assert found is not None
    assert report.ranking is not None
    assert report.ranking.ranked == ()
    assert (found.engine, headline(report, found)) == ("", "No engine to ship")
    assert found.why.endswith(" `buildsys build --remeasure tiny` measures again.")
    for text in (render(report), render_model(ModelPage(report, "2026-11-22T13:30:00Z"))):
        assert not re.search(rf"\d{TIMES}|fastest</span>|Ship |2\.12", text)
