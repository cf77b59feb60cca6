"""Summary of a run: one table per model, its report, and totals."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from buildsys.cli.command import shown_path
from buildsys.cli.console.progress import ConsoleLine, broken_lines, is_implied, remedies
from buildsys.cli.console.rows import text_console
from buildsys.cli.session import BuildSession
from buildsys.errors import with_hint
from buildsys.report.formatting import LONGEST_REASON, duration, fold
from buildsys.report.key_figures import key_figure
from buildsys.stages.table import REPORT
from buildsys.system.printable import printable, printable_line

if TYPE_CHECKING:
    # it loads the report, which a run without failures need not
    from buildsys.cli.failure_report import StaleOutputs

_STYLES = {
    "passed": "green", "restored": "cyan", "unavailable": "yellow", "noisy": "yellow",
    "failed": "bold red",
}  # fmt: skip
_GOOD = ("passed", "restored", "fresh")
_ORDER = (
    "passed",
    "restored",
    "fresh",
    "unavailable",
    "noisy",
    "failed",
    "ignored",
    "not run",
    "broken",
)
_MOST_TABLES = 100  # more models than that: only those with something else than passed targets
_MOST_WARNINGS, _WARNING_LENGTH = 5, 240  # per model, and in characters: torch's are long
_PLAIN_WIDTH = 120  # tables in logs and pipes, unless COLUMNS is set


def print_summary(
    out: TextIO,
    session: BuildSession,
    lines: Sequence[ConsoleLine],
    stale: Sequence[StaleOutputs] = (),
    pages: str = "",
) -> None:
    """Print a table per built model, stale outputs and failures.

    ``pages`` is a line on the HTML pages.
    """
    width = None if out.isatty() or "COLUMNS" in os.environ else _PLAIN_WIDTH
    console = text_console(out, width)

    def print_line(text: str, style: str = "") -> None:
        # unwrapped, so that paths can be copied from a narrow terminal
        console.print(Text(printable(text), style), soft_wrap=True)

    stale_outputs = {outputs.model: outputs for outputs in stale}
    build = session.project.build
    models: dict[str, list[ConsoleLine]] = {}
    for line in lines:
        models.setdefault(line.model, []).append(line)
    built = {name: rows for name, rows in models.items() if any(row.has_ended for row in rows)}
    left_out = 0
    for model, rows in built.items():
        if len(built) > _MOST_TABLES and all(row.status in _GOOD for row in rows):
            left_out += 1
            continue
        console.print(_table(session, model, rows))
        for warning in _warnings(session, rows):
            print_line(warning, "yellow")
        for row in rows:
            if row.stage == REPORT and row.status in _GOOD:
                outputs = session.actions[row.target].outputs
                file = outputs.get("markdown", outputs["result"])
                print_line(f"report: {shown_path(build / file.path)}")
        if (state := stale_outputs.get(model)) and state.report:
            print_line(f"report on this failure: {shown_path(build / state.report)}")
        console.print()
    if left_out:
        print_line(f"{left_out} models passed; the pages show their targets")
    for model, state in stale_outputs.items():
        if text := state.describe(shown_path(build / model)):
            print_line(text, "yellow")
    for line in lines:
        if line.status == "failed":
            text = with_hint(line.reason, line.hint)
            if len(line.hint) > LONGEST_REASON:
                text = f"{line.reason}\n{line.hint}"
            text = f"{'failed':<11}  {line.target}  {line.took}  {text}"
            print_line(text.replace("\n", "\n  "))
            if line.log:
                print_line(f"  log: {line.log}")
            print_line(f"  rerun it alone: buildsys debug {line.target}\n" * session.has_manifest)
    by_target = {line.target: line for line in lines}
    advice = remedies(line for line in lines if not is_implied(line, by_target))
    for text in (*advice, *broken_lines(session)):
        print_line(text)
    if pages:
        print_line(pages)
    counts = Counter(line.status for line in lines)
    counts["broken"] = len(session.broken)
    totals = ", ".join(f"{counts[status]} {status}" for status in _ORDER if counts[status])
    print_line(f"{totals} in {duration(time.monotonic() - session.began)}")


def _table(session: BuildSession, model: str, lines: Sequence[ConsoleLine]) -> Table:
    table = Table(
        title=model, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False
    )
    table.add_column("target", overflow="fold")
    table.add_column("status", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("key figure", overflow="fold")
    by_target = {line.target: line for line in lines}
    for line in lines:
        if is_implied(line, by_target):
            continue
        figure = "" if line.status == "failed" else fold(line.reason)[0]  # it is printed below
        if line.status in _GOOD:
            figure = key_figure(line.stage, session.result(line.target))
        status = Text(line.status, _STYLES.get(line.status, "dim"))
        title = Text(f"{line.stage} {line.variant}".rstrip())
        table.add_row(title, status, Text(line.took), Text(printable_line(figure)))
    return table


def _texts(result: Mapping[str, Any]) -> Iterator[object]:
    """Yield the doubts and warnings of a result file."""
    yield from (doubt.get("text", "") for doubt in result.get("doubts") or ())
    yield from result.get("warnings") or ()


def _warnings(session: BuildSession, lines: Iterable[ConsoleLine]) -> Iterator[str]:
    """Yield the first warnings of built and restored targets."""
    warnings = [
        f"warning: {line.target}: {' '.join(str(warning).split())}"
        for line in lines
        if line.status in ("passed", "restored") and line.stage != REPORT  # it repeats others'
        for warning in _texts(session.result(line.target))
    ]
    yield from (fold(text, _WARNING_LENGTH)[0] for text in warnings[:_MOST_WARNINGS])
    if len(warnings) > _MOST_WARNINGS:
        yield f"and {len(warnings) - _MOST_WARNINGS} more warnings, in the report"
