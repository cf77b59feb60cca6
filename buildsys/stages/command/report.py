"""What report and history say about a command."""

from collections.abc import Iterable
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.report_types import Table
from buildsys.report.result_files import Result
from buildsys.stages.command.result import CommandFigure, CommandResult

_SHOWN = 3  # in one line


def key_figure(result: CommandResult) -> str:
    """List the first figures, else the size of the outputs."""
    figures = [*result.get("figures", {}).items()]
    if figures:
        texts = [_figure_text(name, figure) for name, figure in figures[:_SHOWN]]
        more = [f"and {len(figures) - _SHOWN} more"] if len(figures) > _SHOWN else []
        return ", ".join((*texts, *more))
    outputs = result.get("outputs", {}).values()
    files = sum(output.get("files", 0) for output in outputs)
    return f"{q.plural(files, 'file')}, {q.size(sum(output.get('bytes', 0) for output in outputs))}"


def table(results: Iterable[Result[CommandResult]]) -> Table:
    """List the figures of all commands."""
    columns = ("command", "figure", "value>", "interval>", "limit>", "within the limit")
    rows = []
    for result in results:
        for name, figure in result.content.get("figures", {}).items():
            bounds = ("≥", figure.get("min")), ("≤", figure.get("max"))
            limits = [f"{sign} {q.number(bound)}" for sign, bound in bounds if bound is not None]
            value = f"{q.number(figure.get('value'))} {figure.get('unit', '')}".rstrip()
            interval = q.interval(figure.get("interval"))
            within = q.within_limit(figure.get("passed"))
            limit = " and ".join(limits) or q.NOTHING
            rows.append((result.variant, name, value, interval, limit, within))
    return Table("Commands", columns, tuple(rows))


def history_figures(result: CommandResult) -> dict[str, Any]:
    """Collect reported numbers with their units, and the outputs' size."""
    sizes = [output.get("bytes", 0) for output in result.get("outputs", {}).values()]
    return {"figures": result.get("figures") or None, "bytes": sum(sizes) if sizes else None}


def _figure_text(name: str, figure: CommandFigure) -> str:
    value = figure.get("value")
    half = 0.0
    if value is not None and len(ends := figure.get("interval", [])) == 2:
        half = max(ends[1] - value, value - ends[0])
    unit = f" {figure['unit']}" if figure.get("unit") else ""
    return f"{name} {q.number(value)}{f' ±{q.significant(half, 2)}' if half else ''}{unit}"
