"""Gates of a model as lines of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from buildsys.report import formatting as q
from buildsys.report.results.engine_lines import GateLine
from buildsys.report.results.reader import NOISY, AnyResult, of_type
from buildsys.stages.gate.result import GateResult

SHOWN: Mapping[str, Callable[[float], str]] = {
    "latency": lambda value: f"{q.significant(value * 1e3)} ms",
    "throughput": lambda value: f"{q.significant(value)}/s",
    "size": q.size,
    "memory": q.size,
    "error": q.error,
    "build_time": q.duration,
}
COLUMNS = (
    "engine", "figure", "status", "before>", "now>", "worse by>", "interval>", "tolerance>",
    "limit>",
)  # fmt: skip
_LEAST = ("throughput",)  # figures with a lower limit


def gate_lines(results: Iterable[AnyResult]) -> tuple[GateLine, ...]:
    """List a line per gate of every engine."""
    return tuple(
        GateLine(
            engine=result.variant,
            metric=check.get("metric", ""),
            status=check.get("status", ""),
            before=check.get("before"),
            after=check.get("after"),
            change=None if check.get("status") == NOISY else check.get("change"),
            interval=(low, high) if low is not None and high is not None else None,
            text=check.get("text", ""),
            tolerance=check.get("tolerance"),
            limit=check.get("limit"),
            confidence=check.get("confidence"),
        )
        for result in of_type(results, GateResult)
        for check in result.content.get("checks", [])
        for low, high in [(check.get("low"), check.get("high"))]
    )


def gate_cells(line: GateLine) -> tuple[str, ...]:
    """Write the cells of a line for ``COLUMNS``, without markup."""
    show = SHOWN.get(line.metric, q.significant)
    interval = " to ".join(map(q.change, line.interval)) if line.interval else q.NOTHING
    bound = "≥" if line.metric in _LEAST else "≤"
    return (
        line.engine,
        line.metric.replace("_", " "),
        line.status if line.status != "failed" else "FAILED",
        q.NOTHING if line.before is None else show(line.before),
        q.NOTHING if line.after is None else show(line.after),
        q.NOTHING if line.change is None else q.change(line.change),
        interval,
        q.NOTHING if line.tolerance is None else q.percent(line.tolerance),
        q.NOTHING if line.limit is None else f"{bound} {show(line.limit)}",
    )
