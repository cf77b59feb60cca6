"""Two ways to show a run while it goes on: plain lines, or a live display at the foot of a terminal."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TextIO

from buildsys.cli.console.target_line import Line, duration

if TYPE_CHECKING:
    from rich.table import Table

_MARKS = {"passed": "✓", "restored": "✓", "fresh": "✓", "unavailable": "-", "failed": "✗"}
_STYLES = {
    "passed": "green",
    "restored": "cyan",
    "fresh": "green",
    "unavailable": "yellow",
    "failed": "bold red",
}
_WORDS = {"passed": "done"}
_FIRST_TIME = "never built"  # the executor's words
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Screen(Protocol):
    """Shows targets as they start and end. Called from several threads, one at a time."""

    def started(self, line: Line) -> None:
        """Show that a target runs."""

    def waits(self, line: Line, holder: str) -> None:
        """Show that a target waits for another process, which ``holder`` describes."""

    def ended(self, line: Line) -> None:
        """Show how a target ended."""

    def close(self) -> None:
        """Leave the terminal as it was found."""


def open_screen(
    out: TextIO, running: Callable[[], Iterable[Line]], tally: Callable[[], str]
) -> Screen:
    """Return a live display where ``out`` is a terminal that can show one, else plain lines."""
    if out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return LiveScreen(out, running, tally)
    return PlainScreen(out)


class PlainScreen:
    """One line when a target starts and one when it ends, for logs and pipes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def started(self, line: Line) -> None:
        """Write which target runs and why."""
        self._write("run", line.target, f"… {line.why}" if line.why else "")

    def waits(self, line: Line, holder: str) -> None:
        """Write for which process a target waits: nobody would know why nothing happens."""
        self._write("waits", line.target, f"for {holder}")

    def ended(self, line: Line) -> None:
        """Write how a target ended, how long it took, and why unless it passed."""
        word = _WORDS.get(line.status, line.status)
        reason, *list_below = line.reason.splitlines() or [""]
        self._write(
            word, line.target, "" if line.seconds is None else f"{line.seconds:.1f}s", reason
        )
        for below in list_below:
            self._write("", below)
        if line.status == "failed" and line.log:
            self._write("", f"log: {line.log}")

    def close(self) -> None:
        """Do nothing: lines stay."""

    def _write(self, word: str, *rest: str) -> None:
        self._out.write(f"{word:<11}  {'  '.join(part for part in rest if part)}\n")
        self._out.flush()


class LiveScreen:
    """Finished targets as lines that stay; below them, redrawn, those that run with time and last message."""

    def __init__(
        self, out: TextIO, running: Callable[[], Iterable[Line]], tally: Callable[[], str]
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._running = running
        self._tally = tally
        self._console = Console(file=out, highlight=False)
        # standard streams are left alone: doit exchanges them from several threads under -n
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            transient=True,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._begun = threading.Event()

    def started(self, line: Line) -> None:
        """Start drawing with the first target."""
        del line
        if not self._begun.is_set():
            self._begun.set()
            self._live.start()

    def waits(self, line: Line, holder: str) -> None:
        """Start drawing: the target's last message names the holder."""
        del holder
        self.started(line)

    def ended(self, line: Line) -> None:
        """Print the line that stays."""
        from rich.text import Text

        took = "" if line.seconds is None else duration(line.seconds)
        list_below: list[str] = []
        text = Text.assemble(
            (_MARKS[line.status], _STYLES[line.status]), f" {line.target}  ", (took, "cyan")
        )
        why = _worth_telling(line.why)
        if line.status == "restored":
            text.append("from the store", "dim")
        elif line.status == "passed" and why:
            text.append(f"  {why}", "dim")
        elif line.status != "passed" and line.reason:
            reason, *list_below = line.reason.splitlines()
            text.append(f"\n  {reason}", "red" if line.status == "failed" else "dim")
        self._live.refresh()  # else the target is seen as running below its own last line
        self._console.print(text)
        below = Text("\n").join(Text(f"  {entry}") for entry in list_below)
        if line.status == "failed" and line.log:
            below.append(("\n" if list_below else "") + f"  log: {line.log}", "dim")
        if below:  # lines as long as they are, so that YAML can be copied from a narrow terminal
            self._console.print(below, soft_wrap=True)

    def close(self) -> None:
        """Remove what is redrawn."""
        if self._begun.is_set():
            self._live.stop()

    def _render(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        table = Table.grid(padding=(0, 1), expand=True)  # expanded, the last column alone gives way
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for line in self._running():
            elapsed, told = duration(now - line.began), line.message or _worth_telling(line.why)
            table.add_row(
                _FRAMES[int(now * 8) % len(_FRAMES)],
                line.target,
                Text(elapsed, "cyan"),
                Text(told, "dim"),
            )
        table.add_row("", Text(self._tally(), "dim"))
        return table


def _worth_telling(why: str) -> str:
    """Return why a target runs, unless it is only that it never has: a first build need not say so of each."""
    return "" if why == _FIRST_TIME else why
