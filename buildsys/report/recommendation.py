"""The engine to ship, and the fastest contender of all."""

from __future__ import annotations

import math

from buildsys.report import formatting as q
from buildsys.report.checks import error_margin
from buildsys.report.ranking import (
    contender_name,
    is_close,
    smallest_verified,
    timed_cases,
)
from buildsys.report.results.engine_lines import (
    ERROR,
    LATENCY,
    SIZE,
    THROUGHPUT,
    ErrorMargin,
    Ranking,
    Recommendation,
    TimingLine,
)
from buildsys.report.results.reader import PASSED
from buildsys.report.results.report import Report
from buildsys.stages.bench.result import ENGINE_CONTENDERS
from buildsys.stages.table import VERIFY, target_of

_SUPERLATIVES = {
    LATENCY: "the fastest",
    THROUGHPUT: "the one with the highest throughput",
    SIZE: "the smallest",
    ERROR: "the one with the smallest error",
}
_MOST_NAMES = 4


def recommend(report: Report, ranking: Ranking) -> Recommendation:
    """Choose the first engine of a ranking, with the reasons for it."""

    def margin(engine: str) -> ErrorMargin | None:
        target = target_of(VERIFY, report.model, engine)
        return next(
            (error_margin(check) for check in report.checks if check.target == target), None
        )

    if not ranking.ranked:
        if noisy := _why_noisy(report):
            return Recommendation("", noisy)
        smallest = None if timed_cases(report) else smallest_verified(report, ranking.within)
        if smallest is None:
            return Recommendation("", _why_none(report, ranking))
        only = "the only" if ranking.verified == 1 else "the smallest"
        why = f"It is {only} verified engine{_limit(ranking)}; no benchmark has passed."
        return Recommendation(smallest.engine, why, margin=margin(smallest.engine))
    first, why = ranking.ranked[0], _why_first(ranking)
    if first.p50_ms is None:
        return Recommendation(first.engine, why, margin=margin(first.engine))
    timed = {engine.name for engine in report.engines if engine.timed == PASSED}
    lines = [
        line
        for line in report.bench
        if line.engine in timed and line.case == ranking.case and not line.noisy
        if line.p50_ms is not None and math.isfinite(line.p50_ms)
    ]
    lines.sort(key=lambda line: line.p50_ms or 0.0)
    key = first.engine, first.contender
    best = next(line for line in lines if (line.engine, line.contender) == key)
    rivals = {engine.engine for engine in ranking.ranked if engine.rank != first.rank}
    others = [
        line for line in lines if line.contender not in ENGINE_CONTENDERS or line.engine in rivals
    ]
    if ranking.by == LATENCY and others:
        why += f" {_compared(best, others[0])}"
    fastest = best if is_close(best, lines[0]) else lines[0]
    return Recommendation(best.engine, why, ranking.case, best, fastest, margin(best.engine))


def headline(report: Report, shipped: Recommendation | None) -> str:
    """Say what to do: ship an engine, or wait."""
    if shipped is None or not shipped.engine:
        return "No engine to ship"
    verdict = report.verdict.status
    if verdict == PASSED or (verdict == "partial" and shipped.timing is not None):
        return f"Ship {shipped.engine}"
    return "Do not ship yet"


def _why_none(report: Report, ranking: Ranking) -> str:
    built = [engine.name for engine in report.engines if engine.built == PASSED]
    if not built:
        return "No engine has been built."
    if not ranking.verified:
        names = q.first_names(built, 3)
        return f"No engine has been verified here; built: {names}."
    case = f" in case {ranking.case}" if ranking.case else ""
    left = q.first_names([f"{one.engine} ({one.status})" for one in ranking.unranked], 3)
    return f"No verified engine{_limit(ranking)} can be ranked by {ranking.by}{case}: {left}."


def _why_noisy(report: Report) -> str:
    """Say that the benchmarks of verified engines are noisy, "" if one is steady."""
    noisy = {line.engine for line in report.bench if line.noisy}
    names = [one.name for one in report.engines if one.verified == PASSED and one.name in noisy]
    if not names or timed_cases(report):
        return ""
    subject, verb = ("benchmark", "is") if len(names) == 1 else ("benchmarks", "are")
    return (
        f"The {subject} of {q.first_names(names, _MOST_NAMES)} {verb} noisy, so no engine is"
        f" recommended: `buildsys build --remeasure {report.model}` measures again, and a longer"
        " `bench.duration` narrows the intervals."
    )


def _why_first(ranking: Ranking) -> str:
    """Explain the first rank in a sentence."""
    first, tied, best = ranking.ranked[0], ranking.tied, _SUPERLATIVES[ranking.by]
    place = f" (case {ranking.case})" if ranking.by in (LATENCY, THROUGHPUT) else ""
    among = f"{len(ranking.ranked)} verified engines{_limit(ranking)}"
    if len(ranking.ranked) == 1:
        benchmark = " with a steady benchmark" if ranking.case else ""
        only = _limit(ranking) or (benchmark if ranking.verified > 1 else "")
        return f"It is the only verified engine{only}{place}."
    if not tied:
        return f"It is {best} of {among}{place}."
    advantage = ""
    for figure, name in (("error", "the smallest error"), ("size_bytes", "the smallest file")):
        values = [getattr(engine, figure) for engine in (first, *tied)]
        own, *others = (math.inf if value is None else value for value in values)
        if own < min(others):
            advantage = f"; of these it has {name}"
            break
    names = q.first_names([engine.engine for engine in tied], _MOST_NAMES)
    return f"It is not distinguishable from {names} as {best} of {among}{place}{advantage}."


def _limit(ranking: Ranking) -> str:
    return "" if ranking.within is None else f" with a relative error of at most {ranking.within:g}"


def _compared(best: TimingLine, other: TimingLine) -> str:
    """Compare the engine with the fastest of the others in a sentence."""
    name = contender_name(other.engine, other.contender)
    ratio = (best.p50_ms or math.nan) / (other.p50_ms or math.nan)
    factor = f"{max(ratio, 1 / ratio):.2f}{q.TIMES}"
    time = q.significant(other.p50_ms)
    if is_close(best, other):
        return f"{name} is not distinguishable from it (p50 {time} ms)."
    if ratio > 1:
        return f"{name} is {factor} faster than this engine (p50 {time} ms)."
    return f"It is {factor} as fast as {name}, the next contender."
