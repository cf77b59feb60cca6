"""The end of a run on the console: one table per model, where its report lies, and the count of it all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from buildsys.cli.console.target_line import ENDED, Line, duration
from buildsys.cli.session import Session
from buildsys.report.key_figures import key_figure

if TYPE_CHECKING:  # it takes the report along, which a run that passes need not load
    from buildsys.cli.failures.stale_outputs import LeftBehind

_STYLES = {"passed": "green", "restored": "cyan", "unavailable": "yellow", "failed": "bold red"}
_ORDER = ("passed", "restored", "fresh", "unavailable", "failed", "ignored", "not run")
_WARNINGS, _WARNING_LENGTH = 5, 240  # per model and in characters: torch writes long ones
_UNTOUCHED = 10  # models without a table of which is told what is left there
_PLAIN_WIDTH = 120  # of tables in logs and pipes, unless COLUMNS says otherwise


def tell_end(
    out: TextIO,
    session: Session,
    lines: Sequence[Line],
    elapsed_s: float,
    left: Sequence[LeftBehind] = (),
) -> None:
    """Print what became of every target of the models in which anything ran, and what is ``left`` of earlier passes."""
    behind = {one.model: one for one in left}
    width = None if out.isatty() or "COLUMNS" in os.environ else _PLAIN_WIDTH
    console = Console(file=out, highlight=False, width=width)
    for model, rows in _by_model(lines):
        console.print(_table(session, model, rows))
        for warning in _warnings(session, rows):
            console.print(Text(warning, "yellow"), soft_wrap=True)
        report = _report(session, rows)
        if report:
            # a path is printed whole, so that it can be copied from a narrow terminal
            console.print(Text(f"report: {report}"), soft_wrap=True)
        if model in behind:
            _tell_left(console, session, behind.pop(model))
        console.print()
    untouched = [line for one in behind.values() if (line := _left_line(session, one))]
    for line in untouched[:_UNTOUCHED]:
        console.print(Text(line, "yellow"), soft_wrap=True)
    if len(untouched) > _UNTOUCHED:
        console.print(Text(f"and the same of {len(untouched) - _UNTOUCHED} more models", "yellow"))
    console.print(Text(f"{_counted(lines)} in {duration(elapsed_s)}"))


def _tell_left(console: Console, session: Session, one: LeftBehind) -> None:
    if one.report:
        report = relative(session.project.build / one.report)
        console.print(Text(f"report: {report}, on this run"), soft_wrap=True)
    line = _left_line(session, one)
    if line:
        console.print(Text(line, "yellow"), soft_wrap=True)


def _left_line(session: Session, one: LeftBehind) -> str:
    return one.line(relative(session.project.build / one.model))


def _by_model(lines: Iterable[Line]) -> Iterator[tuple[str, list[Line]]]:
    models: dict[str, list[Line]] = {}
    for line in lines:
        models.setdefault(line.model, []).append(line)
    return (
        (model, rows) for model, rows in models.items() if any(row.status in ENDED for row in rows)
    )


def _table(session: Session, model: str, lines: Iterable[Line]) -> Table:
    table = Table(
        title=model, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False
    )
    table.add_column("target", overflow="fold")
    table.add_column("status", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("key figure", overflow="fold")
    for line in lines:
        result = session.result(line.target) if line.status in (*ENDED, "fresh") else {}
        status = _status(line, result)
        seconds = "" if line.seconds is None else duration(line.seconds)
        table.add_row(
            _name(line),
            Text(status, _STYLES.get(status, "dim")),
            seconds,
            _figure(line, status, result),
        )
    return table


def _name(line: Line) -> str:
    return f"{line.stage} {line.variant}".rstrip()


def _status(line: Line, result: Mapping[str, Any]) -> str:
    """Return the line's status; what is up to date but could not run here is not called fresh."""
    return (
        "unavailable"
        if line.status in ("fresh", "restored") and result.get("status") == "unavailable"
        else line.status
    )


def _figure(line: Line, status: str, result: Mapping[str, Any]) -> Text:
    if status == "unavailable":
        return Text(
            str(result.get("reason", "")) or line.reason
        )  # without the hint, which stands above
    if status in ("passed", "restored", "fresh") or status == result.get("status"):
        return Text(key_figure(line.stage, result))
    return Text("" if status == "failed" else line.reason)  # the reason of a failure has been told


def _warnings(session: Session, lines: Iterable[Line]) -> Iterator[str]:
    """Yield what stages that ran, or came from the store, warn of; the report has all of it."""
    found = [
        f"{line.target}: {_shortened(str(text))}"
        for line in lines
        if line.status in ("passed", "restored")
        and line.stage != "report"  # which repeats those of all others
        for text in session.result(line.target).get("warnings") or ()
    ]
    yield from (f"warning: {text}" for text in found[:_WARNINGS])
    if len(found) > _WARNINGS:
        yield f"and {len(found) - _WARNINGS} more warnings, in the report"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WARNING_LENGTH else f"{line[:_WARNING_LENGTH]}…"


def _report(session: Session, lines: Iterable[Line]) -> str:
    for line in lines:
        if line.stage == "report" and line.status in ("passed", "restored", "fresh"):
            outputs = session.actions[line.target].outputs
            file = outputs.get("markdown", outputs["result"])
            return relative(session.project.build / file.path)
    return ""


def _counted(lines: Iterable[Line]) -> str:
    counts = Counter(line.status for line in lines)
    return ", ".join(f"{counts[status]} {status}" for status in _ORDER if counts[status])


def relative(path: Path) -> str:
    """Return ``path`` as seen from the current folder where that is shorter to read."""
    seen = os.path.relpath(path)
    return str(path) if seen.startswith("..") else seen
