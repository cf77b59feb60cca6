"""Summary of a run: one table per model, its report, and totals."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from buildsys.cli.console.rows import text_console
from buildsys.cli.console.target_line import ENDED, OBVIOUS, ConsoleLine
from buildsys.cli.console.unavailable import causes, row_title, table_rows, took_together
from buildsys.cli.project_root import shown_path, shown_text
from buildsys.cli.session import Session
from buildsys.execution.stale_reasons import FAILED, NOISY, TEXTS
from buildsys.report.formatting import duration
from buildsys.report.key_figures import key_figure
from buildsys.stages.table import REPORT
from buildsys.system.printable import printable, printable_line

if TYPE_CHECKING:
    from rich.console import Console

    # it loads the report, which a run without failures need not
    from buildsys.cli.failure_report import StaleOutputs

_STYLES = {
    "passed": "green", "restored": "cyan", "unavailable": "yellow", "noisy": "yellow",
    "failed": "bold red",
}  # fmt: skip
_GOOD = ("passed", "restored", "fresh")
_ORDER = ("passed", "restored", "fresh", "unavailable", "noisy", "failed", "ignored", "not run")
_MOST_TABLES = 100  # more models than that: only those with something else than passed targets
_MOST_WARNINGS, _WARNING_LENGTH = 5, 240  # per model, and in characters: torch's are long
_MOST_OTHER_MODELS = 10  # with stale outputs but without a table
_SHORT_REASONS = [TEXTS[kind].partition(":")[0] for kind in (FAILED, NOISY)]  # rest: shown anyway
_WITH_REASONS = 110  # columns of a terminal with room for the reasons
_WITH_COLUMNS = 72  # with room for key figures next to the targets
_PLAIN_WIDTH = 120  # tables in logs and pipes, unless COLUMNS is set


def print_summary(
    out: TextIO,
    session: Session,
    lines: Sequence[ConsoleLine],
    elapsed_s: float,
    stale: Sequence[StaleOutputs] = (),
    unshown: Collection[str] = (),
    pages: str = "",
) -> None:
    """Print a table per built model, stale outputs and failures.

    ``unshown`` failures are printed in full, the others with their first sentence; ``pages`` is a
    line on the HTML pages.
    """
    remaining = {one.model: one for one in stale}
    width = None if out.isatty() or "COLUMNS" in os.environ else _PLAIN_WIDTH
    console = text_console(out, width)

    def print_line(text: str, style: str = "") -> None:
        # unwrapped, so that paths can be copied from a narrow terminal
        console.print(Text(printable_line(text), style), soft_wrap=True)

    models: dict[str, list[ConsoleLine]] = {}
    for line in lines:
        models.setdefault(line.model, []).append(line)
    ended = [model for model, rows in models.items() if any(row.has_ended for row in rows)]
    left_out = 0
    for model in ended:
        rows = models[model]
        if len(ended) > _MOST_TABLES and all(row.status in _GOOD for row in rows):
            left_out += 1
            continue
        _print_table(console, session, model, rows)
        for warning in _warnings(session, rows):
            print_line(warning, "yellow")
        for row in rows:
            if row.stage == REPORT and row.status in ("passed", "restored", "fresh"):
                outputs = session.actions[row.target].outputs
                file = outputs.get("markdown", outputs["result"])
                print_line(f"report: {shown_path(session.project.build / file.path)}")
        if model in remaining:
            one = remaining.pop(model)
            if one.report:
                print_line(
                    f"report on this failure: {shown_path(session.project.build / one.report)}"
                )
            if text := one.describe(shown_path(session.project.build / model)):
                print_line(text, "yellow")
        console.print()
    if left_out:
        print_line(f"{left_out} models passed; `buildsys explain` and the pages show their targets")
    others = [
        one.describe(shown_path(session.project.build / one.model)) for one in remaining.values()
    ]
    others = [text for text in others if text]
    for text in others[:_MOST_OTHER_MODELS]:
        print_line(text, "yellow")
    if len(others) > _MOST_OTHER_MODELS:
        print_line(f"and {len(others) - _MOST_OTHER_MODELS} more models", "yellow")
    for line in lines:
        if line.status == "failed":
            _print_failure(console, session, line, in_full=line.target in unshown)
    if hits := _cache_hits(session, lines):
        print_line(hits)
    if pages:
        print_line(pages)
    counts = Counter(line.status for line in lines)
    totals = ", ".join(f"{counts[status]} {status}" for status in _ORDER if counts[status])
    console.print(Text(f"{totals} in {duration(elapsed_s)}"))


def _print_failure(console: Console, session: Session, line: ConsoleLine, *, in_full: bool) -> None:
    """Print a failure, its log, and the command for this stage alone."""
    finished = session.finished.get(line.target)
    sentence = line.reason if in_full or finished is None else shown_text(finished.reason)
    first, *details = printable(sentence).splitlines() or [""]
    below = details if in_full else []
    below += [f"log: {printable_line(line.log)}"] if line.log else []
    below += [f"rerun it alone: buildsys debug {line.target}", ""]
    if console.is_terminal:
        console.print(Text.assemble(("✗", "bold red"), f" {line.target}  ", (line.took, "cyan")))
        console.print(Padding(Text(first), (0, 0, 0, 2)))
    else:  # all on one line, as in the display of a log
        title = f"{'failed':<11}  {line.target}  {line.took}  {first}"
        console.print(Text(title), soft_wrap=True)
    for text in below:  # unwrapped, so that YAML and paths can be copied from a narrow terminal
        console.print(Text(f"  {text}".rstrip()), soft_wrap=True)


def _cache_hits(session: Session, lines: Iterable[ConsoleLine]) -> str:
    """Describe the targets up to date or restored, "" without restored ones."""
    counts = Counter(line.status for line in lines)
    if not counts["restored"]:
        return ""
    fresh = f"{counts['fresh']} up to date, " if counts["fresh"] else ""
    saved_s = sum(one.seconds for one in session.finished.values() if one.restored)
    restored = f"{counts['restored']} restored from the store ({duration(saved_s)} saved)"
    return f"cache hits: {fresh}{restored}"


def _print_table(
    console: Console, session: Session, model: str, lines: Sequence[ConsoleLine]
) -> None:
    width = console.width
    lacks_reasons = width < _WITH_REASONS

    def reason_of(line: ConsoleLine) -> str:  # the hint was printed above
        return str(session.result(line.target).get("reason", "")) or line.reason

    cause = causes(lines, reason_of)
    groups = table_rows(lines, cause)
    reasons = [
        printable_line(next(filter(line.why.startswith, _SHORT_REASONS), line.why))
        if line.has_ended
        and line.why not in OBVIOUS
        # without a column of reasons, only the changes that started it all
        and not (lacks_reasons and line.why.startswith("input "))
        else ""
        for line, *_ in groups
    ]
    has_column = any(reasons) and not lacks_reasons
    rows: list[list[Text]] = []
    for group, reason in zip(groups, reasons, strict=True):
        line = group[0]
        result = session.result(line.target) if line.status in (*ENDED, "fresh") else {}
        status = line.status
        figure = "" if status == "failed" else line.reason  # a failure was printed above
        if status in ("unavailable", "noisy"):
            figure = shown_text(cause.get(line.target) or reason_of(line))
        elif status in ("passed", "restored", "fresh") or status == result.get("status"):
            figure = key_figure(line.stage, result)
        cells = [Text(printable_line(figure))]
        if has_column:
            cells.append(Text(reason))
        elif reason:
            cells[0].append(f"{figure and chr(10)}because {reason}", "dim")
        shown = Text(status, _STYLES.get(status, "dim"))
        rows.append([Text(row_title(group)), shown, Text(took_together(group)), *cells])
    if width < _WITH_COLUMNS:
        _print_in_lines(console, model, rows)
        return
    style = {"title_justify": "left", "title_style": "bold", "box": box.SIMPLE_HEAD}
    table = Table(title=model, show_edge=False, **style)  # type: ignore[arg-type]
    table.add_column("target", overflow="fold")
    table.add_column("status", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("key figure", overflow="fold")
    if has_column:
        table.add_column("reason", overflow="fold", style="dim")
    for cells in rows:
        table.add_row(*cells)
    console.print(table)


def _print_in_lines(console: Console, model: str, rows: Iterable[Sequence[Text]]) -> None:
    """Print rows for a narrow terminal, each figure below its target."""
    console.print(Text(model, "bold"))
    for title, status, time, figure in rows:
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True, pad_edge=False)
        grid.add_column(overflow="fold", ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        grid.add_row(title, Text("  ").join(part for part in (status, time) if part.plain))
        console.print(grid)
        if figure.plain:
            console.print(Padding(figure, (0, 0, 0, 2)))


def _warnings(session: Session, lines: Iterable[ConsoleLine]) -> Iterator[str]:
    """Yield the first warnings of built and restored targets."""
    found = []
    for line in lines:
        if line.status in ("passed", "restored") and line.stage != REPORT:  # it repeats others'
            for warning in session.result(line.target).get("warnings") or ():
                text = shown_text(" ".join(str(warning).split()))
                cut = f"{text[:_WARNING_LENGTH]}…" if len(text) > _WARNING_LENGTH else text
                found.append(f"warning: {line.target}: {cut}")
    yield from found[:_MOST_WARNINGS]
    if len(found) > _MOST_WARNINGS:
        yield f"and {len(found) - _MOST_WARNINGS} more warnings, in the report"
