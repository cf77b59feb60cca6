"""The engine to ship, and the fastest contender of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from buildsys.onnx_graphs.result_types import AgreementFigures
from buildsys.report import formatting as q
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
from buildsys.report.results.report import Check, ComparisonLine, Report
from buildsys.stages.bench.result import ENGINE_CONTENDERS
from buildsys.stages.table import VERIFY, target_of

_SUPERLATIVES = {
    LATENCY: "the fastest",
    THROUGHPUT: "the one with the highest throughput",
    SIZE: "the smallest",
    ERROR: "the one with the smallest error",
}
_MOST_NAMES = 4
_ROUNDING = 1e-9  # of a cosine of equal values


def recommend(report: Report, ranking: Ranking) -> Recommendation:
    """Return the first engine of a ranking with the reasons for it."""
    margins = {one.target: error_margin(one) for one in report.checks}
    if not ranking.ranked:
        if noisy := _why_noisy(report):
            return Recommendation("", noisy)
        smallest = None if timed_cases(report) else smallest_verified(report, ranking.within)
        if smallest is None:
            return Recommendation("", _why_none(report, ranking))
        margin = margins.get(target_of(VERIFY, report.model, smallest.engine))
        only = "the only" if ranking.verified == 1 else "the smallest"
        why = f"It is {only} verified engine{_limit(ranking)}; no benchmark has passed."
        return Recommendation(smallest.engine, why, margin=margin)
    first, case = ranking.ranked[0], ranking.case
    margin = margins.get(target_of(VERIFY, report.model, first.engine))
    why = _why_first(ranking)
    if first.p50_ms is None:
        return Recommendation(first.engine, why, margin=margin)
    timed = {one.name for one in report.engines if one.timed == PASSED}
    lines = sorted(
        (
            line
            for line in report.bench
            if line.engine in timed
            and line.case == case
            and not line.noisy
            and _is_number(line.p50_ms)
        ),
        key=lambda line: line.p50_ms or 0,
    )
    best = next(
        line for line in lines if (line.engine, line.contender) == (first.engine, first.contender)
    )
    ranked = {one.engine for one in ranking.ranked}
    tied = {one.engine for one in ranking.tied}
    others = [
        line
        for line in lines
        if line.contender not in ENGINE_CONTENDERS
        or (line.engine in ranked - tied and line.engine != best.engine)
    ]
    if ranking.by == LATENCY and others:
        why += f" {_compared(best, others)}"
    fastest = best if is_close(best, lines[0]) else lines[0]
    return Recommendation(best.engine, why, case, best, fastest, margin)


def headline(report: Report, shipped: Recommendation | None) -> str:
    """Return what to do: ship an engine, or wait."""
    if shipped is None or not shipped.engine:
        return "No engine to ship"
    verdict = report.verdict.status
    if verdict == PASSED or (verdict == "partial" and shipped.timing is not None):
        return f"Ship {shipped.engine}"
    return "Do not ship yet"


def error_margin(check: Check) -> ErrorMargin | None:
    """Return the error of a check closest to its limit."""
    margins = [m for line in check.comparisons for m in _margins(line, check.limits)]
    for output, agreement in check.agreement.items():
        margins += _agreement_margins(agreement, check.limits, f"output {output}")
    return max(margins, key=lambda margin: margin.used, default=None)


def _margins(line: ComparisonLine, limits: Mapping[str, float]) -> Iterator[ErrorMargin]:
    figures = (
        ("rtol", "relative error", line.relative, 0.0),
        ("atol", "absolute error", line.max_abs, 0.0),
        ("cosine", "cosine", line.cosine, 1.0),
        ("top1", "top-1", line.top1, 1.0),
    )
    return _used_limits(figures, limits, f"case {line.case}, output {line.output}")


def _agreement_margins(
    agreement: AgreementFigures, limits: Mapping[str, float], place: str
) -> Iterator[ErrorMargin]:
    slope = agreement.get("slope")
    figures = (
        ("spread_error", "spread error", agreement.get("spread_error"), 0.0),
        ("correlation", "correlation", agreement.get("correlation"), 1.0),
        ("slope", "slope error", None if slope is None else abs(slope - 1), 0.0),
        ("channel_error", "channel error", agreement.get("channel_error"), 0.0),
        ("class_agreement", "class agreement", agreement.get("class_agreement"), 1.0),
    )
    return _used_limits(figures, limits, place)


def _used_limits(
    figures: Iterable[tuple[str, str, float | None, float]],
    limits: Mapping[str, float],
    place: str,
) -> Iterator[ErrorMargin]:
    """Yield how far figures use their limits; a figure has a name, title, value and best value."""
    for name, measure, value, best in figures:
        limit = limits.get(name)
        if limit is None or value is None:
            continue
        room, distance = abs(limit - best), abs(value - best)
        if best and distance < _ROUNDING:
            distance = 0.0
        if not math.isfinite(value):
            used = math.inf
        elif room:
            used = distance / room
        else:
            used = math.inf if distance else 0.0
        yield ErrorMargin(measure, value, limit, used, place)


def _why_none(report: Report, ranking: Ranking) -> str:
    built = [one.name for one in report.engines if one.built == PASSED]
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
    """Return a sentence on the first engine among the ranked ones."""
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
        own, *others = (_or_infinite(getattr(one, figure)) for one in (first, *tied))
        if own < min(others):
            advantage = f"; of these it has {name}"
            break
    names = q.first_names([one.engine for one in tied], _MOST_NAMES)
    return f"It is not distinguishable from {names} as {best} of {among}{place}{advantage}."


def _limit(ranking: Ranking) -> str:
    return "" if ranking.within is None else f" with a relative error of at most {ranking.within:g}"


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _compared(best: TimingLine, others: Sequence[TimingLine]) -> str:
    """Return a sentence on the engine and the fastest of the others."""
    other = others[0]
    name = contender_name(other.engine, other.contender)
    ratio = (best.p50_ms or math.nan) / (other.p50_ms or math.nan)
    factor = f"{max(ratio, 1 / ratio):.2f}{q.TIMES}"
    if is_close(best, other):
        return f"{name} is not distinguishable from it (p50 {q.significant(other.p50_ms)} ms)."
    if ratio > 1:
        time = q.significant(other.p50_ms)
        return f"{name} is {factor} faster than this engine (p50 {time} ms)."
    return f"It is {factor} as fast as {name}, the next contender."


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
