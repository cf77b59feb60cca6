"""The engine to ship, and the fastest contender of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from buildsys.report import formatting as q
from buildsys.report.benchmarks import contender_title
from buildsys.report.formatting import case_order
from buildsys.report.results.bench import ENGINE, ENGINE_CUDA_GRAPH
from buildsys.report.results.reader import PASSED
from buildsys.report.results.report import (
    Check,
    ComparisonLine,
    EngineLine,
    ErrorMargin,
    Recommendation,
    TimingLine,
)

_ENGINE_CONTENDERS = (ENGINE, ENGINE_CUDA_GRAPH)
_CLOSE = 1.02  # ratio of medians below which a difference is not claimed without intervals


def recommend(
    engines: Sequence[EngineLine], bench: Sequence[TimingLine], checks: Iterable[Check]
) -> Recommendation | None:
    """Return the fastest verified engine, None for a model without engines.

    A benchmark that is not ``passed`` decides nothing: a noisy latency is no reason to ship.
    """
    if not engines:
        return None
    margins = {check.target.rpartition(":")[2]: error_margin(check) for check in checks}
    verified = [one for one in engines if one.built == one.verified == PASSED]
    if not verified:
        return Recommendation("", _why_none(engines))
    timed = {one.name for one in engines if one.timed == PASSED}
    lines = [line for line in bench if line.engine in timed and _is_number(line.p50_ms)]
    case = "opt" if any(line.case == "opt" for line in lines) else ""
    case = case or min((line.case for line in lines), key=case_order, default="")
    lines = sorted((line for line in lines if line.case == case), key=lambda line: line.p50_ms or 0)
    names = {one.name for one in verified}
    own = [one for one in lines if one.engine in names and one.contender in _ENGINE_CONTENDERS]
    if not own:
        first = min(verified, key=lambda one: one.size_bytes or math.inf)
        only = "the only verified engine" if len(verified) == 1 else "the smallest verified engine"
        why = f"It is {only}; no benchmark has passed."
        return Recommendation(first.name, why, margin=margins.get(first.name))
    best = own[0]
    among = f"the fastest of {len(names)} verified engines" if len(names) > 1 else ""
    why = f"It is {among or 'the only verified engine'} (case {case})."
    others = [line for line in lines if line not in own or line.engine != best.engine]
    why += f" {_compared(best, others)}" if others else ""
    return Recommendation(best.engine, why, case, best, lines[0], margins.get(best.engine))


def contender_name(line: TimingLine) -> str:
    """Return the name of a contender; an engine has its own."""
    title = contender_title(line.contender)
    if line.contender in _ENGINE_CONTENDERS:
        return title.replace("engine", line.engine, 1)
    return title


def error_margin(check: Check) -> ErrorMargin | None:
    """Return the error of a check closest to its limit."""
    margins = [m for line in check.comparisons for m in _margins(line, check.limits)]
    return max(margins, key=lambda margin: margin.used, default=None)


def _margins(line: ComparisonLine, limits: Mapping[str, float]) -> Iterator[ErrorMargin]:
    place = f"case {line.case}, output {line.output}"
    for name, measure, value, best in (
        ("rtol", "relative error", line.relative, 0.0),
        ("atol", "absolute error", line.max_abs, 0.0),
        ("cosine", "cosine", line.cosine, 1.0),
        ("top1", "top-1", line.top1, 1.0),
    ):
        limit = limits.get(name)
        if limit is None or value is None:
            continue
        room, distance = abs(limit - best), abs(value - best)
        if not math.isfinite(value):
            used = math.inf
        elif room:
            used = distance / room
        else:
            used = math.inf if distance else 0.0
        yield ErrorMargin(measure, value, limit, used, place)


def _why_none(engines: Sequence[EngineLine]) -> str:
    built = [one.name for one in engines if one.built == PASSED]
    if not built:
        return "No engine has been built."
    names = q.first_names(built, 3)
    return f"No engine has been verified here; built: {names}."


def _compared(best: TimingLine, others: Sequence[TimingLine]) -> str:
    """Return a sentence on the engine and the fastest of the others."""
    other, name = others[0], contender_name(others[0])
    ratio = (best.p50_ms or math.nan) / (other.p50_ms or math.nan)
    factor = f"{max(ratio, 1 / ratio):.2f}{q.TIMES}"
    if is_close(best, other):
        return f"{name} is equally fast (p50 {q.significant(other.p50_ms)} ms)."
    if ratio > 1:
        time = q.significant(other.p50_ms)
        return f"{name} is {factor} faster than this engine (p50 {time} ms)."
    if other.noisy and (bound := _least_factor(best, other)):
        return f"It is at least {bound:.2f}{q.TIMES} as fast as {name}, the next contender."
    return f"It is {factor} as fast as {name}, the next contender."


def _least_factor(best: TimingLine, other: TimingLine) -> float | None:
    one, two = best.p50_interval_ms, other.p50_interval_ms
    return two[0] / one[1] if one and two else None


def is_close(first: TimingLine, second: TimingLine) -> bool:
    """Return True if two medians nearly agree, by their intervals if known."""
    one, two = first.p50_interval_ms, second.p50_interval_ms
    if one and two and len(one) == len(two) == 2:
        return one[0] <= two[1] and two[0] <= one[1]
    if not first.p50_ms or not second.p50_ms:
        return False
    return max(first.p50_ms / second.p50_ms, second.p50_ms / first.p50_ms) < _CLOSE


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
