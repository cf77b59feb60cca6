"""Ranking of a model's engines, and the one to ship.

Only verified engines with a trusted benchmark have a place, and only in one shape case: figures of
different sizes are not comparable. Medians with overlapping intervals are not distinguishable; such
engines share a rank, and the one with the smaller error comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from buildsys.report import formatting as q
from buildsys.report.benchmarks import contender_title
from buildsys.report.checks import error_margin
from buildsys.report.formatting import case_order
from buildsys.report.report_types import (
    ERROR,
    LATENCY,
    SIZE,
    THROUGHPUT,
    Check,
    EngineLine,
    ErrorMargin,
    RankedEngine,
    Ranking,
    Recommendation,
    Report,
    TimingLine,
    UnrankedEngine,
    fill,
)
from buildsys.report.result_files import ABSENT, FAILED, NOISY, PASSED, UNAVAILABLE
from buildsys.stages.bench.result import ENGINE_CONTENDERS
from buildsys.stages.table import BENCH, ENGINE, GATE, VERIFY, target_of

COLUMNS = (
    "rank>", "engine", "precision", "p50 (ms)>", "95 % interval>", "items/s>", "size>", "error>",
    "Pareto-optimal",
)  # fmt: skip
_CLOSE = 1.02  # ratio below which a difference is not claimed without intervals
_MEASURED = (LATENCY, THROUGHPUT)
LEFT_OUT = "left out"  # status of a verified engine without a place
Span = tuple[float, float, float]  # a figure, and the ends of its interval; smaller is better


def rank_engines(
    report: Report, *, by: str = LATENCY, case: str = "", within: float | None = None
) -> Ranking:
    """Rank the engines of a report in ``case``, by default the opt case."""
    ranking = _rank(report, by, case, within)
    if not ranking.ranked or by not in _MEASURED:
        return ranking
    first, others = ranking.ranked[0].engine, {}
    names = {engine.engine for engine in ranking.ranked}
    for other in timed_cases(report):
        ranked = _rank(report, by, other, within).ranked
        best = [engine.engine for engine in ranked if engine.rank == 1]
        if first not in best and names.issuperset(best):
            others[other] = best[0]
    return replace(ranking, other_cases=others)


def timed_cases(report: Report) -> list[str]:
    """List the cases of all trusted benchmarks of verified engines."""
    return sorted({line.case for line in _trusted_timings(report)}, key=case_order)


def _rank(
    report: Report, by: str, case: str, within: float | None, *, needs_bench: bool = True
) -> Ranking:
    errors = {check.target: worst_error(check) for check in report.checks}
    trusted, cases = _trusted_timings(report), timed_cases(report)
    case = case or ("opt" if "opt" in cases else next(iter(cases), ""))
    engines: list[RankedEngine] = []
    unranked: list[UnrankedEngine] = []
    for engine in report.engines:
        own = [line for line in trusted if (line.engine, line.case) == (engine.name, case)]
        timing = min(own, key=lambda line: line.p50_ms or math.inf, default=None)
        error = errors.get(target_of(VERIFY, report.model, engine.name))
        has_figure = not needs_bench or by not in _MEASURED or timing is not None
        untimed = None if has_figure else case
        problem = _problem(report, engine, untimed, needs_bench=needs_bench)
        if problem is None and within is not None and (error is None or not error <= within):
            text = "unknown" if error is None else q.error(error)
            problem = LEFT_OUT, f"its relative error is {text}, the limit {within:g}"
        if problem is not None:
            unranked.append(UnrankedEngine(engine.name, *problem))
            continue
        ranked = fill(
            RankedEngine,
            vars(timing) if timing else {},
            engine=engine.name,
            backend=engine.backend,
            precision=engine.precision,
            size_bytes=engine.size_bytes,
            error=error,
            rank=0,
        )
        engines.append(ranked)
    return Ranking(
        by=by,
        case=case if cases else "",
        dims=next((line.dims for line in trusted if line.case == case), ""),
        ranked=_mark_optimal(_in_order(engines, by)),
        unranked=tuple(unranked),
        within=within,
        verified=sum(engine.built == engine.verified == PASSED for engine in report.engines),
    )


def ranking_cells(ranking: Ranking, engine: RankedEngine) -> tuple[str, ...]:
    """Write the cells of an engine for ``COLUMNS``, without markup."""
    name = contender_name(engine.engine, engine.contender) if engine.contender else engine.engine
    return (
        rank_text(ranking, engine),
        name,
        f"{engine.backend} {engine.precision}".strip(),
        q.significant(engine.p50_ms),
        q.interval(engine.p50_interval_ms),
        q.significant(engine.throughput_per_s),
        q.size(engine.size_bytes),
        q.error(engine.error),
        "yes" if engine.is_optimal else "no",
    )


def rank_text(ranking: Ranking, engine: RankedEngine) -> str:
    """Write the rank of an engine, with "=" if shared."""
    is_shared = [other.rank for other in ranking.ranked].count(engine.rank) > 1
    return f"{engine.rank} =" if is_shared else str(engine.rank)


def ranking_notes(ranking: Ranking) -> Iterator[str]:
    """Yield sentences on a table of ranked engines."""
    ranks = [engine.rank for engine in ranking.ranked]
    if len(set(ranks)) < len(ranks):
        why = "their intervals overlap, or their medians differ by at most 2 %"
        why = why if ranking.by in _MEASURED else "their figures are equal"
        yield f"Engines with the same rank (=) are not distinguishable: {why}."
    for case, engine in ranking.other_cases.items():
        yield f"In case {case}, {engine} is first."


def contender_name(engine: str, contender: str) -> str:
    """Name a contender; an engine has its own name."""
    title = contender_title(contender)
    return title.replace("engine", engine, 1) if contender in ENGINE_CONTENDERS else title


def unique_names(lines: Sequence[TimingLine]) -> dict[tuple[str, str], str]:
    """Name contenders, with the engine next to which each baseline was timed."""
    several = len({line.engine for line in lines}) > 1
    names = {}
    for line in lines:
        name = contender_name(line.engine, line.contender)
        if several and line.contender not in ENGINE_CONTENDERS:
            name += f" (with {line.engine})"
        names[line.engine, line.contender] = name
    return names


def worst_error(check: Check) -> float | None:
    """Find the largest relative error of a check. NaN is the worst."""
    errors = [line.relative for line in check.comparisons if line.relative is not None]
    return max(errors, key=lambda error: (math.isnan(error), error), default=None)


def is_close(first: TimingLine | RankedEngine, second: TimingLine | RankedEngine) -> bool:
    """Check if two medians nearly agree, by their intervals if known."""
    return _overlap(_latency(first), _latency(second))


def _trusted_timings(report: Report) -> list[TimingLine]:
    """List the timings of engines themselves in benchmarks that have passed."""
    timed = {e.name for e in report.engines if e.built == e.verified == e.timed == PASSED}
    return [
        line
        for line in report.bench
        if line.engine in timed
        and line.contender in ENGINE_CONTENDERS
        and not line.noisy
        and line.p50_ms is not None
        and math.isfinite(line.p50_ms)
    ]


def _problem(
    report: Report, engine: EngineLine, untimed: str | None, *, needs_bench: bool
) -> tuple[str, str] | None:
    """Give status and reason of an engine without a place, None if it has one.

    ``untimed`` is the case in which it has no trusted latency but needs one; "" is any.
    """
    lines = {line.stage: line for line in report.summary if line.variant == engine.name}
    checks = [(ENGINE, engine.built, "not built"), (VERIFY, engine.verified, "not verified")]
    if GATE in lines and lines[GATE].status == FAILED:
        checks.append((GATE, FAILED, "a gate has failed"))
    has_bench = engine.timed != ABSENT or BENCH in lines
    if needs_bench and has_bench:
        checks.append((BENCH, engine.timed, "its benchmark has not passed"))
    for stage, status, otherwise in checks:
        if status != PASSED:
            texts = {NOISY: "its latency is noisy", UNAVAILABLE: "unavailable here"}
            reason = lines[stage].reason if stage in lines else ""
            return status, reason or texts.get(status, otherwise)
    if untimed is None:
        return None
    if not has_bench:
        return ABSENT, "its manifest has no benchmark"
    place = f" in case {untimed}" if untimed else ""
    own = [line for line in report.bench if line.engine == engine.name]
    if any(line.noisy for line in own if line.case == untimed or not untimed):
        return LEFT_OUT, f"its latency{place} is noisy"
    return LEFT_OUT, f"not timed{place}"


def _in_order(engines: Iterable[RankedEngine], by: str) -> list[RankedEngine]:
    """Sort engines by rank; those in one rank by error, size and latency."""
    span: Callable[[RankedEngine], Span] = {
        LATENCY: _latency,
        THROUGHPUT: _slowness,
        SIZE: lambda engine: _exact(engine.size_bytes),
        ERROR: lambda engine: _exact(engine.error),
    }[by]

    def tie(engine: RankedEngine) -> tuple[float, float, float, str]:
        figures = _exact(engine.error), _exact(engine.size_bytes), _latency(engine)
        return figures[0][0], figures[1][0], figures[2][0], engine.engine

    rest = sorted(engines, key=lambda engine: (span(engine)[0], tie(engine)))
    ordered: list[RankedEngine] = []
    while rest:
        group = [engine for engine in rest if _overlap(span(rest[0]), span(engine))]
        rest = [engine for engine in rest if engine not in group]
        rank = len(ordered) + 1
        ordered += [replace(engine, rank=rank) for engine in sorted(group, key=tie)]
    return ordered


def _mark_optimal(ranked: Sequence[RankedEngine]) -> tuple[RankedEngine, ...]:
    """Mark engines without another that is better in one figure and worse in none.

    Throughput does not count: in one case it follows from the latency.
    """

    def spans(engine: RankedEngine) -> list[Span]:
        return [_latency(engine), _exact(engine.error), _exact(engine.size_bytes)]

    def is_better(engine: RankedEngine, other: RankedEngine) -> bool:
        pairs = zip(spans(engine), spans(other), strict=True)
        different = [pair for pair in pairs if not _overlap(*pair)]
        return bool(different) and all(first[0] < second[0] for first, second in different)

    complete = [
        engine for engine in ranked if all(math.isfinite(span[0]) for span in spans(engine))
    ]
    optimal = [
        engine for engine in complete if not any(is_better(other, engine) for other in complete)
    ]
    return tuple(replace(engine, is_optimal=engine in optimal) for engine in ranked)


def _latency(line: TimingLine | RankedEngine) -> Span:
    p50_ms, ends = line.p50_ms, line.p50_interval_ms
    if p50_ms is None or not math.isfinite(p50_ms):
        return _exact(None)
    if ends and len(ends) == 2:
        return p50_ms, ends[0], ends[1]
    return p50_ms, p50_ms, p50_ms * _CLOSE


def _slowness(engine: RankedEngine) -> Span:
    """Compute the time per item, with the relative interval of the median."""
    if not engine.throughput_per_s or not math.isfinite(engine.throughput_per_s):
        return _exact(None)
    p50, low, high = _latency(engine)
    time = 1 / engine.throughput_per_s
    return time, time * low / p50, time * high / p50


def _exact(value: float | None) -> Span:
    number = math.inf if value is None or math.isnan(value) else value
    return number, number, number


def _overlap(first: Span, second: Span) -> bool:
    return first[1] <= second[2] and second[1] <= first[2]


_SUPERLATIVES = {
    LATENCY: "the fastest",
    THROUGHPUT: "the one with the highest throughput",
    SIZE: "the smallest",
    ERROR: "the one with the smallest error",
}
_MOST_NAMES = 4


def recommend(report: Report, ranking: Ranking) -> Recommendation:
    """Choose the first engine of a ranking, with the reasons for it."""
    checks = {check.target: check for check in report.checks}

    def margin(engine: str) -> ErrorMargin | None:
        check = checks.get(target_of(VERIFY, report.model, engine))
        return error_margin(check) if check else None

    if not ranking.ranked:
        if noisy := _why_noisy(report):
            return Recommendation("", noisy)
        verified = _rank(report, SIZE, "", ranking.within, needs_bench=False).ranked
        if timed_cases(report) or not verified:
            return Recommendation("", _why_none(report, ranking))
        only = "the only" if ranking.verified == 1 else "the smallest"
        why = f"It is {only} verified engine{_limit(ranking)}; no benchmark has passed."
        return Recommendation(verified[0].engine, why, margin=margin(verified[0].engine))
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
    left = q.first_names([f"{engine.engine} ({engine.status})" for engine in ranking.unranked], 3)
    return f"No verified engine{_limit(ranking)} can be ranked by {ranking.by}{case}: {left}."


def _why_noisy(report: Report) -> str:
    """Say that the benchmarks of verified engines are noisy, "" if one is steady."""
    noisy = {line.engine for line in report.bench if line.noisy}
    names = [e.name for e in report.engines if e.verified == PASSED and e.name in noisy]
    if not names or timed_cases(report):
        return ""
    return (
        f"The benchmarks of {q.first_names(names, _MOST_NAMES)} are noisy, so no engine is"
        f" recommended: `buildsys build --remeasure {report.model}` measures again, and a longer"
        " `bench.duration` narrows the intervals."
    )


def _why_first(ranking: Ranking) -> str:
    """Explain the first rank in a sentence."""
    first, tied, best = ranking.ranked[0], ranking.tied, _SUPERLATIVES[ranking.by]
    place = f" (case {ranking.case})" if ranking.by in (LATENCY, THROUGHPUT) else ""
    among = f"{len(ranking.ranked)} verified engines{_limit(ranking)}"
    if len(ranking.ranked) == 1:
        steady = " with a steady benchmark" if ranking.case and ranking.verified > 1 else ""
        return f"It is the only verified engine{_limit(ranking) or steady}{place}."
    if not tied:
        return f"It is {best} of {among}{place}."
    errors = [math.inf if engine.error is None else engine.error for engine in (first, *tied)]
    advantage = "; of these it has the smallest error" if errors[0] < min(errors[1:]) else ""
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
