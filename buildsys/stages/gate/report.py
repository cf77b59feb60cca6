"""What report and history say about a gate."""

import math
from collections.abc import Iterable
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.report_types import Table
from buildsys.report.result_files import FAILED, NOISY, PASSED, Result
from buildsys.stages.gate.result import RISES, GateCheck, GateResult

_COLUMNS = (
    "engine", "figure", "status", "before>", "now>", "worse by>", "interval>", "tolerance>",
    "limit>",
)  # fmt: skip


def key_figure(result: GateResult) -> str:
    """List the gates with the changes of their figures."""
    texts, accepted = [], result.get("baseline", {}).get("accepted")
    for check in result["checks"]:
        status, change = check["status"], check.get("change")
        is_limited = status != PASSED or check.get("limit") is not None
        text = status if is_limited else "accepted" if accepted else "not compared"
        if change is not None and status != NOISY:
            text = q.change(change) + (" (FAILED)" if status == FAILED else "")
        texts.append(f"{check['metric'].replace('_', ' ')} {text}")
    return ", ".join(texts) + (f": {accepted}" if accepted else "")


def table(results: Iterable[Result[GateResult]]) -> Table:
    """List the gates of all engines, and why a person has accepted a build."""
    rows, notes = [], []
    for result in results:
        rows += [_cells(result.variant, check) for check in result.content.get("checks", [])]
        if accepted := result.content.get("baseline", {}).get("accepted"):
            notes.append(f"{result.variant} is accepted: {accepted}")
    return Table("Gates", _COLUMNS, tuple(rows), tuple(notes))


def _cells(engine: str, check: GateCheck) -> tuple[str, ...]:
    metric, status = check.get("metric", ""), check.get("status", "")
    show, bound = q.GATED_FIGURES.get(metric, q.significant), "≥" if metric in RISES else "≤"
    change = None if status == NOISY else check.get("change")
    before, after = check.get("before"), check.get("after")
    low, high = check.get("low"), check.get("high")
    tolerance, limit = check.get("tolerance"), check.get("limit")
    return (
        engine,
        metric.replace("_", " "),
        "FAILED" if status == FAILED else status,
        q.NOTHING if before is None else show(before),
        q.NOTHING if after is None else show(after),
        q.NOTHING if change is None else q.change(change),
        q.NOTHING if low is None or high is None else f"{q.change(low)} to {q.change(high)}",
        q.NOTHING if tolerance is None else q.percent(tolerance),
        q.NOTHING if limit is None else f"{bound} {show(limit)}",
    )


def history_figures(result: GateResult) -> dict[str, Any]:
    """Collect the figures measured by the gate."""
    return {k: v for k, v in result.get("figures", {}).items() if math.isfinite(v)}
