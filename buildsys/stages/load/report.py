"""What report and history say about engines under load."""

from collections.abc import Iterable
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.report_types import Chart, CurvePoint, Table
from buildsys.report.result_files import Result
from buildsys.stages.load.result import LoadPoint, LoadResult, LoadSetting, setting_text

_COLUMNS = (
    "engine", "batch>", "instances>", "threads>", "streams>", "most items/s>",
    "within the limit>", "surely>", "surely not>", "J per item>", "note",
)  # fmt: skip
_NOTES = (
    "Most: instances that call without a break. Within the limit: the largest rate of requests at"
    " random times whose 99th percentile is within bench.load.p99, from their scheduled times.",
    "A request has a whole batch. Surely and surely not: by 95 % intervals over blocks.",
)
_CURVES = 3  # of an engine
_TALLEST = 2.0  # times the limit


def key_figure(result: LoadResult) -> str:
    """Describe the best setting."""
    best, limit = result["settings"][0], f"p99 < {q.number(result['p99_limit_ms'])} ms"
    if not best["capacity_per_s"]:
        return f"no setting has {limit}"
    noisy = bool(best.get("noisy"))
    rate = q.latency(_items(best), noisy=noisy)
    return f"{'noisy: ' * noisy}{rate}{'+' * best['is_least']}/s with {limit}: {setting_text(best)}"


def history_figures(result: LoadResult) -> dict[str, Any]:
    """Collect the best setting and its capacity in items."""
    measured = [setting for setting in result.get("settings", []) if "capacity_per_s" in setting]
    if not measured:
        return {}
    best = measured[0]
    return {
        "setting": setting_text(best),
        "p99_limit_ms": result.get("p99_limit_ms"),
        "capacity_per_s": _items(best),
        "joules": _per_item(best),
        "noisy": best.get("noisy"),
    }


def table(results: Iterable[Result[LoadResult]]) -> Table:
    """List the settings of all engines, the best one of each first, and draw their curves."""
    rows, notes, charts = [], [*_NOTES], []
    for result in results:
        settings = result.content.get("settings", [])
        limit_ms = result.content.get("p99_limit_ms", 0.0)
        rows += [_row(result.variant, setting) for setting in settings]
        if settings:
            energy = result.content.get("energy", "")
            notes.append(f"{result.variant}: limit {q.number(limit_ms)} ms; energy {energy}")
        curves = {setting_text(own): _curve(own, limit_ms) for own in settings[:_CURVES]}
        if curves := {name: curve for name, curve in curves.items() if len(curve) > 1}:
            title = f"{result.variant}: 99th percentile over items per second"
            charts.append(Chart(title, "ms", limit_ms, curves))
    return Table("Load", _COLUMNS, tuple(rows), tuple(notes), charts=tuple(charts))


def _row(engine: str, setting: LoadSetting) -> tuple[str, ...]:
    names = "instances", "threads", "streams"
    parts = [engine, str(setting["batch"]), *(str(setting.get(n) or q.NOTHING) for n in names)]
    if "points" not in setting:
        return (*parts, *[q.NOTHING] * 5, setting.get("problem", ""))
    noisy = bool(setting.get("noisy"))
    ends = [end * setting["batch"] if end else None for end in setting["capacity_interval_per_s"]]
    rates = (setting["max_per_s"] * setting["batch"], _items(setting), *ends)
    texts = [q.NOTHING if rate is None else q.latency(rate, noisy=noisy) for rate in rates]
    texts[1] += "+" * setting["is_least"]
    return (*parts, *texts, q.significant(_per_item(setting)), setting.get("noisy", ""))


def _curve(setting: LoadSetting, limit_ms: float) -> tuple[CurvePoint, ...]:
    points = setting.get("points", [])
    drawn = [point for point in points if point["p99_ms"] <= _TALLEST * limit_ms]
    beyond = [point for point in points if point not in drawn][:1]
    return tuple(_curve_point(point, setting["batch"]) for point in (*drawn, *beyond))


def _curve_point(point: LoadPoint, batch: int) -> CurvePoint:
    rate, ends = point["rate_per_s"] * batch, point["p99_interval_ms"]
    title = f"{q.significant(rate)}/s: p50 {q.significant(point['p50_ms'])} ms"
    title += f", p99 {q.significant(point['p99_ms'])} ms"
    if ends:
        title += f" ({q.interval(ends)})"
    return CurvePoint(rate, point["p99_ms"], tuple(ends or ()), title)


def _items(setting: LoadSetting) -> float:
    return setting["capacity_per_s"] * setting["batch"]


def _per_item(setting: LoadSetting) -> float | None:
    joules = setting.get("joules")
    return joules and joules / setting["batch"]
