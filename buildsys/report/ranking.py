"""Ranking of a model's engines, and the one to ship.

Only verified engines with a trusted benchmark, whose evaluation passed if there is one, have a
place, and only in one shape case: figures of different sizes are not comparable. Medians with
overlapping intervals are not distinguishable; such engines share a rank, and the one with the
smaller error comes first.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from buildsys.onnx_graphs.result_types import format_beyond
from buildsys.report import formatting as q
from buildsys.report.checks import error_margin
from buildsys.report.engines import contender_title
from buildsys.report.formatting import case_order
from buildsys.report.report_types import (
    ERROR,
    LATENCY,
    SIZE,
    THROUGHPUT,
    Accuracy,
    EngineLine,
    ErrorMargin,
    RankedEngine,
    Ranking,
    Recommendation,
    Report,
    Table,
    TargetLine,
    TimingLine,
    UnrankedEngine,
    fill,
)
from buildsys.report.result_files import ABSENT, FAILED, NOISY, PASSED
from buildsys.stages.bench.result import ENGINE_CONTENDERS
from buildsys.stages.table import BENCH, ENGINE, EVALUATE, GATE, VERIFY, target_of

_COLUMNS = (
    "rank>", "engine", "precision", "p50 (ms)>", "95 % interval>", "mean items/s>", "size>",
    "error>", "Pareto-optimal",
)  # fmt: skip
_TIED = "Engines with the same rank (=) are not distinguishable."
_MOST_NAMES = 4
_CLOSE = 1.02  # ratio below which a difference is not claimed without intervals
_MEASURED = (LATENCY, THROUGHPUT)
WAIT = "Do not ship yet"  # a headline
LEFT_OUT = "left out"  # status of a verified engine without a place
Span = tuple[float, float, float]  # a figure, and the ends of its interval; smaller is better


def timed_cases(report: Report) -> list[str]:
    """List the cases of all trusted benchmarks of verified engines."""
    return sorted({line.case for line in _trusted_timings(report)}, key=case_order)


def rank_engines(
    report: Report,
    *,
    by: str = LATENCY,
    case: str = "",
    within: float | None = None,
    min_accuracy: float | None = None,
) -> Ranking:
    """Rank the engines of a report in ``case``, by default the opt case."""
    limits = Ranking(by, within=within, min_accuracy=min_accuracy)
    trusted, cases = _trusted_timings(report), timed_cases(report)
    case = case or ("opt" if "opt" in cases else next(iter(cases), ""))
    engines: list[RankedEngine] = []
    unranked: list[UnrankedEngine] = []
    for engine in report.engines:
        own = [line for line in trusted if (line.engine, line.case) == (engine.name, case)]
        timing = min(own, key=lambda line: line.p50_ms or math.inf, default=None)
        problem = _defect(report, engine, limits)
        if problem is None and timing is None:
            problem = _bench_problem(report, engine)
        if problem is None and timing is None and by in _MEASURED:
            problem = LEFT_OUT, f"it has no steady latency{f' in case {case}' if case else ''}"
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
            error=_error(report, engine),
            rank=0,
            accuracy=engine.accuracy,
        )
        engines.append(ranked)
    return replace(
        limits,
        case=case if cases else "",
        dims=next((line.dims for line in trusted if line.case == case), ""),
        ranked=_mark_optimal(_in_order(engines, by)),
        unranked=tuple(unranked),
    )


def ranking_table(ranking: Ranking) -> Table:
    """List the ranked engines, the one to ship first."""
    first = next((engine.accuracy for engine in ranking.ranked if engine.accuracy), None)
    rows = tuple(
        (
            rank_text(ranking, engine),
            contender_name(engine.engine, engine.contender) if engine.contender else engine.engine,
            f"{engine.backend} {engine.precision}".strip(),
            q.significant(engine.p50_ms),
            q.interval(engine.p50_interval_ms),
            q.significant(engine.throughput_per_s),
            q.size(engine.size_bytes),
            q.error(engine.error),
            "yes" if engine.is_optimal else "no",
            *(accuracy_texts(engine.accuracy) if first else ()),
        )
        for engine in ranking.ranked
    )
    ranks = [engine.rank for engine in ranking.ranked]
    notes = [_TIED] if len(set(ranks)) < len(ranks) else []
    columns: tuple[str, ...] = _COLUMNS
    if first:
        columns += (f"{first.title}>", "loss (95 % interval)>")
        original = q.metric(first.original, is_share=first.is_share)
        notes.append(f"{first.title} of the original model: {original}.")
    return Table(f"Engines by {ranking.by}", columns, rows, tuple(notes))


def accuracy_texts(accuracy: Accuracy | None) -> tuple[str, str]:
    """Write a metric on data, and its loss with the interval."""
    if accuracy is None:
        return q.NOTHING, q.NOTHING
    return q.metric(accuracy.value, is_share=accuracy.is_share), q.loss(vars(accuracy))


def rank_text(ranking: Ranking, engine: RankedEngine) -> str:
    """Write the rank of an engine, with "=" if shared."""
    is_shared = [other.rank for other in ranking.ranked].count(engine.rank) > 1
    return f"{engine.rank} =" if is_shared else str(engine.rank)


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


def _steady_timings(report: Report) -> list[TimingLine]:
    """List all steady timings of benchmarks; another contender may have made one noisy."""
    timed = {engine.name for engine in report.engines if engine.timed in (PASSED, NOISY)}
    return [
        line
        for line in report.bench
        if line.engine in timed
        and not line.noisy
        and line.p50_ms is not None
        and math.isfinite(line.p50_ms)
    ]


def _trusted_timings(report: Report) -> list[TimingLine]:
    """List the steady timings of verified engines themselves."""
    verified = {e.name for e in report.engines if e.built == e.verified == PASSED}
    return [
        line
        for line in _steady_timings(report)
        if line.engine in verified and line.contender in ENGINE_CONTENDERS
    ]


def _error(report: Report, engine: EngineLine) -> float | None:
    """Find the largest relative error of an engine's check. NaN is the worst."""
    target = target_of(VERIFY, report.model, engine.name)
    compared = (line for c in report.checks if c.target == target for line in c.comparisons)
    errors = [line.relative for line in compared if line.relative is not None]
    return max(errors, key=lambda error: (math.isnan(error), error), default=None)


def _defect(report: Report, engine: EngineLine, limits: Ranking) -> tuple[str, str] | None:
    """Give status and reason of an engine that must not be shipped, else None."""
    ended = {line.stage: line.status for line in report.summary if line.variant == engine.name}
    gate = FAILED if ended.get(GATE) == FAILED else PASSED
    evaluated = ended.get(EVALUATE, PASSED)
    statuses = {ENGINE: engine.built, VERIFY: engine.verified, GATE: gate, EVALUATE: evaluated}
    for stage, status in statuses.items():
        if status != PASSED:
            return status, _reason(report, engine, stage) or f"its {stage} target is {status}"
    error, within = _error(report, engine), limits.within
    if within is not None and (error is None or not error <= within):
        text = "unknown" if error is None else format_beyond(error, within)
        return LEFT_OUT, f"its relative error is {text}, the limit {within:g}"
    accuracy, least = engine.accuracy, limits.min_accuracy
    if least is not None and (accuracy is None or not accuracy.meets(least)):
        if accuracy is None:
            return LEFT_OUT, "it is not evaluated on data"
        limit = q.metric(least, is_share=accuracy.is_share)
        return LEFT_OUT, f"its {accuracy.title} is {accuracy_texts(accuracy)[0]}, the limit {limit}"
    return None


def _bench_problem(report: Report, engine: EngineLine) -> tuple[str, str] | None:
    """Give status and reason of a benchmark that has not passed, None without one."""
    has_bench = any(_is_of(line, BENCH, engine) for line in report.summary)
    if engine.timed == PASSED or (engine.timed == ABSENT and not has_bench):
        return None
    return engine.timed, _reason(report, engine, BENCH) or f"its benchmark is {engine.timed}"


def _reason(report: Report, engine: EngineLine, stage: str) -> str:
    return next((line.reason for line in report.summary if _is_of(line, stage, engine)), "")


def _is_of(line: TargetLine, stage: str, engine: EngineLine) -> bool:
    return (line.stage, line.variant) == (stage, engine.name)


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


def recommend(report: Report, ranking: Ranking) -> Recommendation:
    """Choose the first engine of a ranking, with the reasons for it."""
    if not ranking.ranked:
        return _recommend_untimed(report, ranking)
    first, why = ranking.ranked[0], _why_first(ranking)
    margin = _margin(report, first.engine)
    if first.p50_ms is None:
        return Recommendation(first.engine, why, margin=margin)
    ranked = {engine.engine for engine in ranking.ranked}
    lines = [line for line in _steady_timings(report) if line.case == ranking.case]
    lines = [n for n in lines if n.contender not in ENGINE_CONTENDERS or n.engine in ranked]
    lines.sort(key=lambda line: line.p50_ms or 0.0)
    key = first.engine, first.contender
    best = next(line for line in lines if (line.engine, line.contender) == key)
    fastest = best if _overlap(_latency(best), _latency(lines[0])) else lines[0]
    if fastest is not best and ranking.by == LATENCY:
        ratio = (best.p50_ms or math.nan) / (fastest.p50_ms or math.nan)
        name = contender_name(fastest.engine, fastest.contender)
        time = q.significant(fastest.p50_ms)
        why += f" {name} is {ratio:.2f}{q.TIMES} faster than this engine (p50 {time} ms)."
    return Recommendation(best.engine, why, ranking.case, best, fastest, margin)


def _recommend_untimed(report: Report, ranking: Ranking) -> Recommendation:
    """Choose the smallest usable engine without benchmarks, none with noisy ones."""
    usable = [e for e in report.engines if _defect(report, e, ranking) is None]
    names = {engine.name for engine in usable}
    is_noisy = any(line.noisy for line in report.bench if line.engine in names)
    if usable and not is_noisy and not timed_cases(report):
        smallest = min(usable, key=lambda engine: (engine.size_bytes or math.inf, engine.name))
        kind = "the only" if len(usable) == 1 else "the smallest"
        why = f"It is {kind} verified engine{_limit(ranking)}; no benchmark has passed."
        return Recommendation(smallest.name, why, margin=_margin(report, smallest.name))
    if not any(engine.built == PASSED for engine in report.engines):
        return Recommendation("", "No engine has been built.")
    left = q.first_names([f"{e.engine} {e.status}" for e in ranking.unranked], _MOST_NAMES)
    return Recommendation(
        "", f"No engine is verified{_limit(ranking)} with a steady benchmark: {left}."
    )


def headline(report: Report, shipped: Recommendation | None) -> str:
    """Say what to do: ship an engine, or wait."""
    if shipped is None or not shipped.engine:
        return "No engine to ship"
    verdict = report.verdict.status
    if verdict == PASSED or (verdict == "partial" and shipped.timing is not None):
        return f"Ship {shipped.engine}"
    return WAIT


def _margin(report: Report, engine: str) -> ErrorMargin | None:
    target = target_of(VERIFY, report.model, engine)
    check = next((check for check in report.checks if check.target == target), None)
    return error_margin(check) if check else None


def _why_first(ranking: Ranking) -> str:
    """Explain the first rank in a sentence."""
    place = f" (case {ranking.case})" if ranking.by in _MEASURED else ""
    if len(ranking.ranked) == 1:
        return f"It is the only ranked engine{_limit(ranking)}{place}."
    count = f"{len(ranking.ranked)} ranked engines{_limit(ranking)}"
    text = f"It is the first of {count} by {ranking.by}{place}"
    if not ranking.tied:
        return f"{text}."
    names = q.first_names([engine.engine for engine in ranking.tied], _MOST_NAMES)
    return f"{text}, but not distinguishable from {names}; the smallest error decides."


def _limit(ranking: Ranking) -> str:
    limits = (
        ("a relative error of at most {:g}", ranking.within),
        ("a metric on data of {:g} or better", ranking.min_accuracy),
    )
    texts = [text.format(limit) for text, limit in limits if limit is not None]
    return f" with {' and '.join(texts)}" if texts else ""
