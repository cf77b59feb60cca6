"""Ranking of a model's engines by latency, throughput, size or error.

Only verified engines with a trusted benchmark have a place, and only in one shape case: figures of
different sizes are not comparable. Medians with overlapping intervals are not distinguishable; such
engines share a rank, and the one with the smaller error comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from buildsys.report import formatting as q
from buildsys.report.benchmarks import contender_title
from buildsys.report.formatting import case_order
from buildsys.report.results.engine_lines import EngineLine, TimingLine
from buildsys.report.results.ranking import (
    ERROR,
    LATENCY,
    SIZE,
    THROUGHPUT,
    RankedEngine,
    Ranking,
    UnrankedEngine,
)
from buildsys.report.results.reader import ABSENT, FAILED, NOISY, PASSED, UNAVAILABLE
from buildsys.report.results.report import Check, Report, TargetLine
from buildsys.stages.bench.result import ENGINE_CONTENDERS
from buildsys.stages.table import BENCH, ENGINE, GATE, VERIFY, target_of

COLUMNS = (
    "rank>", "engine", "precision", "p50 (ms)>", "95 % interval>", "items/s>", "size>", "error>",
    "Pareto-optimal",
)  # fmt: skip
_CLOSE = 1.02  # ratio below which a difference is not claimed without intervals
_MEASURED = (LATENCY, THROUGHPUT)
LEFT_OUT = "left out"  # status of a verified engine without a place


def rank_engines(
    report: Report, *, by: str = LATENCY, case: str = "", within: float | None = None
) -> Ranking:
    """Rank the engines of a report in ``case``, by default the opt case."""
    ranking = _rank(report, by, case, within)
    if not ranking.ranked or by not in _MEASURED:
        return ranking
    first, others = ranking.ranked[0].engine, {}
    names = {one.engine for one in ranking.ranked}
    for other in timed_cases(report):
        best = [one.engine for one in _rank(report, by, other, within).ranked if one.rank == 1]
        if first not in best and names.issuperset(best):
            others[other] = best[0]
    return replace(ranking, other_cases=others)


def smallest_verified(report: Report, within: float | None) -> RankedEngine | None:
    """Return the engine to ship if no benchmark has passed."""
    untimed = replace(
        report,
        engines=tuple(replace(one, timed=ABSENT) for one in report.engines),
        summary=tuple(line for line in report.summary if line.stage != BENCH),
    )
    return next(iter(_rank(untimed, SIZE, "", within).ranked), None)


def timed_cases(report: Report) -> list[str]:
    """Return the cases of all trusted benchmarks of verified engines."""
    return sorted({line.case for line in _trusted_timings(report)}, key=case_order)


def _rank(report: Report, by: str, case: str, within: float | None) -> Ranking:
    targets = {f"{line.stage}:{line.variant}": line for line in report.summary}
    errors = {check.target: worst_error(check) for check in report.checks}
    trusted, cases = _trusted_timings(report), timed_cases(report)
    case = case or ("opt" if "opt" in cases else next(iter(cases), ""))
    found: list[RankedEngine] = []
    unranked: list[UnrankedEngine] = []
    for engine in report.engines:
        own = [one for one in trusted if (one.engine, one.case) == (engine.name, case)]
        error = errors.get(target_of(VERIFY, report.model, engine.name))
        problem = _problem(engine, targets)
        if problem is None:
            noisy = any(
                line.noisy
                for line in report.bench
                if line.engine == engine.name and line.case == (case or line.case)
            )
            problem = _bench_problem(
                engine, targets, has_timing=bool(own), noisy=noisy, case=case, by=by
            )
        if problem is None and within is not None and (error is None or not error <= within):
            problem = LEFT_OUT, f"its relative error is {_known(error)}, the limit {within:g}"
        if problem is not None:
            unranked.append(UnrankedEngine(engine.name, *problem))
            continue
        timing = min(own, key=lambda line: line.p50_ms or math.inf, default=None)
        found.append(
            RankedEngine(
                engine=engine.name,
                backend=engine.backend,
                precision=engine.precision,
                rank=0,
                p50_ms=timing.p50_ms if timing else None,
                p50_interval_ms=timing.p50_interval_ms if timing else None,
                throughput_per_s=timing.throughput_per_s if timing else None,
                size_bytes=engine.size_bytes,
                error=error,
                contender=timing.contender if timing else "",
            )
        )
    return Ranking(
        by=by,
        case=case if cases else "",
        dims=next((line.dims for line in trusted if line.case == case), ""),
        ranked=_mark_optimal(_in_order(found, by)),
        unranked=tuple(unranked),
        within=within,
        verified=sum(one.built == one.verified == PASSED for one in report.engines),
    )


def ranking_cells(ranking: Ranking, one: RankedEngine) -> tuple[str, ...]:
    """Return the cells of an engine for ``COLUMNS``, without markup."""
    return (
        rank_text(ranking, one),
        contender_name(one.engine, one.contender) if one.contender else one.engine,
        f"{one.backend} {one.precision}".strip(),
        q.significant(one.p50_ms),
        q.interval(one.p50_interval_ms),
        q.significant(one.throughput_per_s),
        q.size(one.size_bytes),
        q.error(one.error),
        "yes" if one.is_optimal else "no",
    )


def rank_text(ranking: Ranking, one: RankedEngine) -> str:
    """Return the rank of an engine, with "=" if shared."""
    is_shared = [other.rank for other in ranking.ranked].count(one.rank) > 1
    return f"{one.rank} =" if is_shared else str(one.rank)


def ranking_notes(ranking: Ranking) -> Iterator[str]:
    """Yield sentences on a table of ranked engines."""
    ranks = [one.rank for one in ranking.ranked]
    if len(set(ranks)) < len(ranks):
        tied = [one for one in ranking.ranked if ranks.count(one.rank) > 1]
        why = "their figures are equal"
        if ranking.by in _MEASURED:
            known = all(one.p50_interval_ms for one in tied)
            why = "their intervals overlap" if known else "their medians differ by at most 2 %"
        yield f"Engines with the same rank (=) are not distinguishable: {why}."
    precisions = dict.fromkeys(one.precision for one in ranking.ranked if one.precision)
    if len(precisions) > 1:
        yield f"The engines differ in precision ({', '.join(precisions)}): compare their errors."
    for case, engine in ranking.other_cases.items():
        yield f"In case {case}, {engine} is first."


def contender_name(engine: str, contender: str) -> str:
    """Return the name of a contender; an engine has its own."""
    title = contender_title(contender)
    return title.replace("engine", engine, 1) if contender in ENGINE_CONTENDERS else title


def worst_error(check: Check) -> float | None:
    """Return the largest relative error of a check. NaN is the worst."""
    errors = [line.relative for line in check.comparisons if line.relative is not None]
    return max(errors, key=lambda error: (math.isnan(error), error), default=None)


def is_close(first: TimingLine | RankedEngine, second: TimingLine | RankedEngine) -> bool:
    """Return True if two medians nearly agree, by their intervals if known."""
    return _overlap(_latency(first), _latency(second))


def _trusted_timings(report: Report) -> list[TimingLine]:
    """Return the timings of engines themselves in benchmarks that have passed."""
    timed = {one.name for one in report.engines if one.built == one.verified == one.timed == PASSED}
    return [
        line
        for line in report.bench
        if line.engine in timed
        and line.contender in ENGINE_CONTENDERS
        and not line.noisy
        and line.p50_ms is not None
        and math.isfinite(line.p50_ms)
    ]


def _problem(engine: EngineLine, lines: Mapping[str, TargetLine]) -> tuple[str, str] | None:
    """Return status and reason of an engine that must not be shipped, None if it may."""
    for stage, status, otherwise in (
        (ENGINE, engine.built, "not built"),
        (VERIFY, engine.verified, "not verified"),
    ):
        if status != PASSED:
            return _reason(lines.get(f"{stage}:{engine.name}"), status, otherwise)
    gate = lines.get(f"{GATE}:{engine.name}")
    if gate is not None and gate.status == FAILED:
        return _reason(gate, FAILED, "a gate has failed")
    return None


def _bench_problem(
    engine: EngineLine,
    lines: Mapping[str, TargetLine],
    *,
    has_timing: bool,
    noisy: bool,
    case: str,
    by: str,
) -> tuple[str, str] | None:
    line = lines.get(f"{BENCH}:{engine.name}")
    if engine.timed == ABSENT and line is None:  # the manifest asks for no benchmark
        return (ABSENT, "its manifest has no benchmark") if by in _MEASURED else None
    if engine.timed != PASSED:
        return _reason(line, engine.timed, "its benchmark has not passed")
    if not has_timing and by in _MEASURED:
        place = f" in case {case}" if case else ""
        return LEFT_OUT, f"its latency{place} is noisy" if noisy else f"not timed{place}"
    return None


def _reason(line: TargetLine | None, status: str, otherwise: str) -> tuple[str, str]:
    names = {NOISY: "its latency is noisy", UNAVAILABLE: "unavailable here"}
    reason = line.reason if line is not None else ""
    return status, reason or names.get(status, otherwise)


def _known(error: float | None) -> str:
    return "unknown" if error is None else q.error(error)


def _in_order(found: Iterable[RankedEngine], by: str) -> list[RankedEngine]:
    """Return engines by rank; those in one rank by error, size and latency."""
    interval: Callable[[RankedEngine], tuple[float, float, float]] = {
        LATENCY: _latency,
        THROUGHPUT: _slowness,
        SIZE: lambda one: _exact(one.size_bytes),
        ERROR: lambda one: _exact(one.error),
    }[by]

    def tie(one: RankedEngine) -> tuple[float, float, float, str]:
        return _exact(one.error)[0], _exact(one.size_bytes)[0], _latency(one)[0], one.engine

    rest = sorted(found, key=lambda one: (interval(one)[0], tie(one)))
    ordered: list[RankedEngine] = []
    while rest:
        group = [one for one in rest if _overlap(interval(rest[0]), interval(one))]
        rest = [one for one in rest if one not in group]
        rank = len(ordered) + 1
        ordered += [replace(one, rank=rank) for one in sorted(group, key=tie)]
    return ordered


def _mark_optimal(ranked: Sequence[RankedEngine]) -> tuple[RankedEngine, ...]:
    """Mark engines without another that is better in one figure and worse in none.

    Throughput does not count: in one case it follows from the latency.
    """

    def is_better(one: RankedEngine, other: RankedEngine) -> bool:
        pairs = [
            (_latency(one), _latency(other)),
            (_exact(one.error), _exact(other.error)),
            (_exact(one.size_bytes), _exact(other.size_bytes)),
        ]
        if any(first[0] > second[0] and not _overlap(first, second) for first, second in pairs):
            return False
        return any(first[0] < second[0] and not _overlap(first, second) for first, second in pairs)

    def is_known(one: RankedEngine) -> bool:
        figures = (one.p50_ms, one.error, one.size_bytes)
        return all(figure is not None and math.isfinite(figure) for figure in figures)

    known = [one for one in ranked if is_known(one)]
    return tuple(
        replace(one, is_optimal=one in known and not any(is_better(two, one) for two in known))
        for one in ranked
    )


# A figure, and the ends of its interval; smaller is better.
def _latency(one: TimingLine | RankedEngine) -> tuple[float, float, float]:
    p50, ends = one.p50_ms, one.p50_interval_ms
    if p50 is None or not math.isfinite(p50):
        return _exact(None)
    if ends and len(ends) == 2:
        return p50, ends[0], ends[1]
    return p50, p50, p50 * _CLOSE


def _slowness(one: RankedEngine) -> tuple[float, float, float]:
    """Return the time per item, with the relative interval of the median."""
    if not one.throughput_per_s or not math.isfinite(one.throughput_per_s):
        return _exact(None)
    p50, low, high = _latency(one)
    time = 1 / one.throughput_per_s
    return time, time * low / p50, time * high / p50


def _exact(value: float | None) -> tuple[float, float, float]:
    known = math.inf if value is None or math.isnan(value) else value
    return known, known, known


def _overlap(first: tuple[float, float, float], second: tuple[float, float, float]) -> bool:
    return first[1] <= second[2] and second[1] <= first[2]
