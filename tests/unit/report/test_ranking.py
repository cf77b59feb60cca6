import dataclasses
import math
import re

import pytest
from tiny_results import Results, bench

from buildsys.manifest.default_limits import AGREEMENT_LIMITS
from buildsys.report.assemble import assemble
from buildsys.report.checks import LIMITS, error_margin
from buildsys.report.formatting import TIMES
from buildsys.report.html.pages import ModelPage, render_model
from buildsys.report.markdown import render
from buildsys.report.ranking import headline, rank_engines, ranking_table, recommend, timed_cases
from buildsys.report.report_types import (
    MEASURES,
    Check,
    ComparisonLine,
    EngineLine,
    Ranking,
    Recommendation,
    Report,
    TargetLine,
    TimingLine,
)
from buildsys.report.result_files import PASSED


@pytest.fixture
def report(results: Results) -> Report:
    """Return a report without engines."""
    found = assemble("tiny", results.manifest, results.inputs, {})
    return dataclasses.replace(found, engines=(), bench=(), checks=(), summary=())


def timing(engine: str, case: str, p50_ms: float, *, noisy: bool = False) -> TimingLine:
    ends = p50_ms * 0.99, p50_ms * 1.01
    return TimingLine(
        engine, "engine", case, "batch 8", 8, 100, p50_ms, p50_ms, p50_ms, 8000 / p50_ms,
        ends, noisy,
    )  # fmt: skip


def with_engine(
    report: Report,
    name: str,
    p50_ms: float | None = 1.0,
    error: float | None = 1e-6,
    size: int = 1000,
    *,
    precision: str = "fp32",
    reasons: dict[str, tuple[str, str]] | None = None,
    **cases: float,
) -> Report:
    """Return the report with another engine; ``reasons`` maps stages to status and reason."""
    reasons = reasons or {}
    status = {stage: reasons.get(stage, (PASSED, ""))[0] for stage in ("engine", "verify", "bench")}
    line = EngineLine(
        name, "onnxruntime", precision, status["engine"], status["verify"], status["bench"], size,
        1.0, 7, "", "", (),
    )  # fmt: skip
    compared = ComparisonLine(name, "opt", "scores", error, error, 1.0, None, True)
    check = Check(f"verify:tiny:{name}", "", status["verify"], {"rtol": 1e-1}, (compared,), ())
    summary = tuple(
        TargetLine(f"{stage}:tiny:{name}", stage, name, state, None, "", reason, "", "", "")
        for stage, (state, reason) in {**dict.fromkeys(status, (PASSED, "")), **reasons}.items()
    )
    noisy = status["bench"] == "noisy"
    p50s = {**({} if p50_ms is None else {"opt": p50_ms}), **cases}
    return dataclasses.replace(
        report,
        engines=(*report.engines, line),
        checks=(*report.checks, check),
        summary=(*report.summary, *summary),
        bench=(*report.bench, *(timing(name, n, p50, noisy=noisy) for n, p50 in p50s.items())),
    )


def order(ranking: Ranking) -> list[str]:
    return [f"{one.rank} {one.engine}" for one in ranking.ranked]


def test_engines_are_ranked_by_each_measure(report: Report) -> None:
    report = with_engine(report, "fp32", 4.0, 1e-6, 400)
    report = with_engine(report, "fp16", 2.0, 1e-3, 200, precision="fp16")
    report = with_engine(report, "int8", 3.0, 1e-2, 100, precision="int8")
    orders = {by: " ".join(order(rank_engines(report, by=by))) for by in MEASURES}
    assert orders == {
        "latency": "1 fp16 2 int8 3 fp32",
        "throughput": "1 fp16 2 int8 3 fp32",
        "size": "1 int8 2 fp16 3 fp32",
        "error": "1 fp32 2 fp16 3 int8",
    }


def test_engines_with_overlapping_intervals_share_a_rank(report: Report) -> None:
    report = with_engine(report, "int8", 2.00, 1e-2)
    report = with_engine(report, "fp16", 2.01, 1e-3)
    report = with_engine(report, "fp32", 4.0, 1e-6)
    ranking = rank_engines(report)
    assert order(ranking) == ["1 fp16", "1 int8", "3 fp32"]
    shipped = recommend(report, ranking)
    assert shipped.engine == "fp16"
    assert shipped.fastest == shipped.timing
    assert shipped.why == (
        "It is the first of 3 ranked engines by latency (case opt), but not distinguishable from"
        " int8; the smallest error decides."
    )
    table = ranking_table(ranking)
    assert [row[0] for row in table.rows] == ["1 =", "1 =", "3"]
    assert table.notes == ("Engines with the same rank (=) are not distinguishable.",)
    bench = tuple(dataclasses.replace(line, p50_interval_ms=None) for line in report.bench)
    assert ranking_table(rank_engines(dataclasses.replace(report, bench=bench))).notes


def test_ranks_do_not_chain_from_one_overlap_to_the_next(report: Report) -> None:
    for number, p50 in enumerate((1.0, 1.015, 1.03)):
        report = with_engine(report, f"e{number}", p50, error=1e-6 * (number + 1))
    assert order(rank_engines(report)) == ["1 e0", "1 e1", "3 e2"]


def test_an_engine_is_optimal_unless_another_is_better_in_one_and_worse_in_none(
    report: Report,
) -> None:
    report = with_engine(report, "fp32", 4.0, 1e-6, 400)
    report = with_engine(report, "slow", 5.0, 1e-6, 400)
    report = with_engine(report, "large", 4.01, 1e-6, 500)
    report = with_engine(report, "int8", 1.0, 1e-2, 100)
    optimal = {one.engine for one in rank_engines(report).ranked if one.is_optimal}
    assert optimal == {"fp32", "int8"}


@pytest.mark.parametrize("by", MEASURES)
@pytest.mark.parametrize(
    ("stage", "status", "reason"),
    [
        ("engine", "unavailable", "no GPU was found"),
        ("engine", "stale", "not run: the run ended early"),
        ("verify", "failed", "output scores differs"),
        ("gate", "failed", "latency is 30 % above its baseline"),
        ("bench", "noisy", "other processes used 40 % of the processors"),
        ("bench", "failed", "the engine crashed"),
    ],
)
def test_an_engine_with_a_problem_is_listed_with_its_reason_and_has_no_rank(
    report: Report, by: str, stage: str, status: str, reason: str
) -> None:
    report = with_engine(report, "good", 4.0)
    report = with_engine(report, "other", 0.1, 0.0, 1, reasons={stage: (status, reason)})
    ranking = rank_engines(report, by=by)
    assert order(ranking) == ["1 good"]
    assert [dataclasses.astuple(one) for one in ranking.unranked] == [("other", status, reason)]


def test_only_figures_of_one_case_are_compared(report: Report) -> None:
    report = with_engine(report, "a", 2.0, max=9.0)
    report = with_engine(report, "b", 3.0, max=5.0)
    report = with_engine(report, "c", None, max=0.1)
    ranking = rank_engines(report)
    assert order(ranking) == ["1 a", "2 b"]
    assert ranking.unranked[0].reason == "it has no steady latency in case opt"
    assert order(rank_engines(report, case="max")) == ["1 c", "2 b", "3 a"]
    assert timed_cases(report) == ["opt", "max"]


def test_a_limit_leaves_out_larger_and_unknown_errors(report: Report) -> None:
    for name, error in (("fp32", 1e-6), ("int8", 1e-2), ("nan", math.nan), ("none", None)):
        report = with_engine(report, name, 9.0 if name == "fp32" else 1.0, error)
    ranking = rank_engines(report, within=1e-3)
    assert order(ranking) == ["1 fp32"]
    assert {one.engine: one.reason for one in ranking.unranked} == {
        "int8": "its relative error is 0.01, the limit 0.001",
        "nan": "its relative error is not finite, the limit 0.001",
        "none": "its relative error is unknown, the limit 0.001",
    }
    only = "the only ranked engine with a relative error of at most 0.001"
    assert recommend(report, ranking).why == f"It is {only} (case opt)."
    none = recommend(report, rank_engines(report, within=1e-9))
    assert (none.engine, headline(report, none)) == ("", "No engine to ship")
    assert "relative error of at most 1e-09" in none.why


def test_noisy_figures_of_one_case_do_not_count(report: Report) -> None:
    report = with_engine(with_engine(report, "a", 2.0), "b", 4.0)
    noisy = dataclasses.replace(report.bench[0], noisy=True)
    report = dataclasses.replace(report, bench=(noisy, *report.bench[1:]))
    assert order(rank_engines(report)) == ["1 b"]


def test_the_report_and_a_second_ranking_of_it_agree(results: Results) -> None:
    report = assemble("tiny", results.manifest, results.inputs, {})
    assert report.ranking == rank_engines(report)
    assert report.recommendation == recommend(report, rank_engines(report))
    assert report.recommendation is not None
    assert report.ranking is not None
    assert report.recommendation.engine == report.ranking.ranked[0].engine


@pytest.mark.parametrize("by", MEASURES)
def test_without_a_steady_benchmark_no_engine_has_a_rank(report: Report, by: str) -> None:
    for name, size in (("a", 200), ("b", 100)):
        report = with_engine(report, name, size=size, reasons={"bench": ("noisy", "other load")})
    ranking = rank_engines(report, by=by)
    assert order(ranking) == []
    assert {one.reason for one in ranking.unranked} == {"other load"}
    shipped = recommend(report, ranking)
    assert (shipped.engine, shipped.case) == ("", "")
    assert shipped.why == "No engine is verified with a steady benchmark: a noisy, b noisy."


ONLY = "It is the only ranked engine (case opt)."


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
    assert found.why == "It is the first of 2 ranked engines by latency (case opt)."
    assert found.fastest == found.timing


def test_a_faster_baseline_is_named(results: Results) -> None:
    results.without_gpu()
    set_latencies(results, engine=2.0, torch=6.0, torch_compile=1.6)
    found = recommendation(results)
    assert found.engine == "ort-cpu"
    assert found.why == (
        f"{ONLY} torch.compile is 1.25{TIMES} faster than this engine (p50 1.60 ms)."
    )
    assert found.fastest is not None
    assert found.fastest.contender == "torch_compile"


def test_an_engine_without_verification_is_not_recommended(results: Results) -> None:
    results.without_gpu()
    results.unavailable("verify:tiny:ort-cpu")
    found = recommendation(results)
    assert (found.engine, found.timing) == ("", None)
    assert found.why.startswith(
        "No engine is verified with a steady benchmark: ort-cpu unavailable, rtx-fp16 unavailable."
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
    assert (found.engine, found.why) == ("ort-cpu", "It is the only ranked engine (case opt).")
    assert found.fastest == found.timing


def test_a_noisy_baseline_alone_takes_no_rank_from_an_engine(results: Results) -> None:
    results.without_gpu()
    content = bench(None, engine=2.0, torch=6.0)
    reason = "torch, case opt: the median is only known within ±30 %"
    content["cases"]["opt"]["contenders"]["torch"]["noisy"] = reason.partition(": ")[2]
    content["cases"]["opt"]["noisy"] = content["noisy"] = [reason]
    results.write("bench:tiny:ort-cpu", {"status": "noisy", "reason": reason, **content})
    report = assemble("tiny", results.manifest, results.inputs, {})
    assert report.ranking is not None
    assert [engine.engine for engine in report.ranking.ranked] == ["ort-cpu"]
    assert headline(report, report.recommendation) == "Ship ort-cpu"
    (line,) = [line for line in report.summary if line.target == "bench:tiny:ort-cpu"]
    assert (line.status, line.outcome) == ("noisy", "opt: p50 2.00 ms")  # without a ratio
    assert render(report).count("the median is only known within ±30 %") == 1


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
    assert found.why.startswith("No engine is verified with a steady benchmark: ort-cpu ")
    for text in (render(report), render_model(ModelPage(report, "2026-11-22T13:30:00Z"))):
        assert not re.search(rf"\d{TIMES}|fastest</span>|Ship |2\.12", text)
