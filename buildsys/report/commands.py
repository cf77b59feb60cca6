"""Figures of a model's commands as lines of the report."""

from __future__ import annotations

from collections.abc import Iterable

from buildsys.report import formatting as q
from buildsys.report.results.reader import AnyResult, of_type
from buildsys.report.results.report import CommandLine
from buildsys.stages.command.result import CommandResult

COLUMNS = ("command", "figure", "value>", "interval>", "limit>", "within the limit")


def command_lines(results: Iterable[AnyResult]) -> tuple[CommandLine, ...]:
    """List a line per figure of every command."""
    return tuple(
        CommandLine(
            command=result.variant,
            figure=name,
            value=figure.get("value"),
            unit=figure.get("unit", ""),
            interval=(ends[0], ends[1]) if len(ends) == 2 else None,
            least=figure.get("min"),
            most=figure.get("max"),
            passed=figure.get("passed"),
        )
        for result in of_type(results, CommandResult)
        for name, figure in result.content.get("figures", {}).items()
        for ends in [figure.get("interval", [])]
    )


def command_cells(line: CommandLine) -> tuple[str, ...]:
    """Write the cells of a line for ``COLUMNS``, without markup."""
    limits = [f"≥ {q.number(line.least)}"] if line.least is not None else []
    limits += [f"≤ {q.number(line.most)}"] if line.most is not None else []
    return (
        line.command,
        line.figure,
        _with_unit(line.value, line.unit),
        q.interval(line.interval),
        " and ".join(limits) or q.NOTHING,
        q.within_limit(line.passed),
    )


def _with_unit(value: float | None, unit: str) -> str:
    return f"{q.number(value)} {unit}".rstrip() if value is not None else q.NOTHING
