"""What report and history say about a command."""

from __future__ import annotations

from typing import Any

from buildsys.report import formatting as q
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
