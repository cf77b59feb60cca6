"""Displays of a run in progress: plain lines, or a live terminal."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TextIO

from buildsys.cli.console.target_line import TargetLine
from buildsys.report.formatting import duration

if TYPE_CHECKING:
    from rich.table import Table

_MARKS = {
    "passed": ("✓", "green"),
    "restored": ("✓", "cyan"),
    "fresh": ("✓", "green"),
    "unavailable": ("-", "yellow"),
    "failed": ("✗", "bold red"),
}
_FIRST_BUILD = "never built"  # the executor's words; obvious in a first build
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def open_display(
    out: TextIO, running: Callable[[], Iterable[TargetLine]], tally: Callable[[], str]
) -> PlainDisplay | LiveDisplay:
    """Return a live display for a capable terminal, else plain lines.

    Its methods are called from several threads, one at a time.
    """
    if out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return LiveDisplay(out, running, tally)
    return PlainDisplay(out)


class PlainDisplay:
    """One line per start and end of a target, for logs and pipes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def started(self, line: TargetLine) -> None:
        """Print a running target and the reason."""
        self._print("run", line.target, f"… {line.why}" if line.why else "")

    def waits(self, line: TargetLine, holder: str) -> None:
        """Print the process blocking a target."""
        self._print("waits", line.target, f"for {holder}")

    def ended(self, line: TargetLine) -> None:
        """Print the end of a target, its time and reason."""
        word = "done" if line.status == "passed" else line.status
        reason, *details = line.reason.splitlines() or [""]
        took = "" if line.seconds is None else duration(line.seconds)
        self._print(word, line.target, took, reason)
        for detail in details:
            self._print("", detail)
        if line.status == "failed" and line.log:
            self._print("", f"log: {line.log}")

    def close(self) -> None:
        """Do nothing: lines stay."""

    def _print(self, word: str, *rest: str) -> None:
        self._out.write(f"{word:<11}  {'  '.join(part for part in rest if part)}\n")
        self._out.flush()


class LiveDisplay:
    """Permanent lines of finished targets, and redrawn running targets below."""

    def __init__(
        self, out: TextIO, running: Callable[[], Iterable[TargetLine]], tally: Callable[[], str]
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._running = running
        self._tally = tally
        self._console = Console(file=out, highlight=False)
        # doit exchanges the standard streams from several threads under -n
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            transient=True,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._begun = threading.Event()

    def started(self, line: TargetLine) -> None:
        """Start drawing with the first target."""
        del line
        if not self._begun.is_set():
            self._begun.set()
            self._live.start()

    def waits(self, line: TargetLine, holder: str) -> None:
        """Start drawing: the target's last message names the holder."""
        del holder
        self.started(line)

    def ended(self, line: TargetLine) -> None:
        """Print the permanent line."""
        from rich.text import Text

        took = "" if line.seconds is None else duration(line.seconds)
        text = Text.assemble(_MARKS[line.status], f" {line.target}  ", (took, "cyan"))
        details: list[str] = []
        if line.status == "restored":
            text.append("from the store", "dim")
        elif line.status == "passed":
            text.append(f"  {_why(line)}".rstrip(), "dim")
        elif line.reason:
            reason, *details = line.reason.splitlines()
            text.append(f"\n  {reason}", "red" if line.status == "failed" else "dim")
        self._live.refresh()  # else the target is shown as running below its own last line
        self._console.print(text)
        below = Text("\n").join(Text(f"  {detail}") for detail in details)
        if line.status == "failed" and line.log:
            below.append(("\n" if details else "") + f"  log: {line.log}", "dim")
        if below:  # unwrapped, so that YAML can be copied from a narrow terminal
            self._console.print(below, soft_wrap=True)

    def close(self) -> None:
        """Remove the running targets."""
        if self._begun.is_set():
            self._live.stop()

    def _render(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        table = Table.grid(padding=(0, 1), expand=True)  # expanded, only the last column shrinks
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for line in self._running():
            frame, elapsed = _FRAMES[int(now * 8) % len(_FRAMES)], duration(now - line.began)
            message = Text(line.message or _why(line), "dim")
            table.add_row(frame, line.target, Text(elapsed, "cyan"), message)
        table.add_row("", Text(self._tally(), "dim"))
        return table


def _why(line: TargetLine) -> str:
    return "" if line.why == _FIRST_BUILD else line.why
