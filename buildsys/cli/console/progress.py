"""Plain and live displays of a run's targets."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from buildsys.report.formatting import duration
from buildsys.system.printable import printable, printable_line

if TYPE_CHECKING:
    from rich.table import Table

ENDED = ("passed", "restored", "unavailable", "noisy", "failed")
_MARKS = {
    "passed": ("✓", "green"),
    "restored": ("✓", "cyan"),
    "fresh": ("✓", "green"),
    "unavailable": ("-", "yellow"),
    "noisy": ("~", "yellow"),
    "failed": ("✗", "bold red"),
}
_FIRST_BUILD = "never built"  # the executor's words; obvious in a first build
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass
class TargetLine:
    """One target of a run."""

    target: str
    model: str
    stage: str
    variant: str
    status: str = "not run"  # or running, fresh, ignored, or one of ENDED
    began: float = 0.0  # monotonic clock
    seconds: float | None = None
    why: str = ""  # why it runs
    message: str = ""  # its last progress message
    reason: str = ""  # why it failed, is unavailable or noisy, or did not run
    log: str = ""  # path of its log, if not already in the reason
    recorded: bool = False  # unavailable in an earlier run; nothing was done in this one

    @property
    def has_ended(self) -> bool:
        """True if this run has built, restored or failed it."""
        return self.status in ENDED and not self.recorded

    @property
    def took(self) -> str:
        """Its time, "" if there is none."""
        return "" if self.seconds is None else duration(self.seconds)


def open_display(out: TextIO, lines: Mapping[str, TargetLine]) -> PlainDisplay | LiveDisplay:
    """Return a live display for a capable terminal, else plain lines.

    Its methods are called from several threads, one at a time.
    """
    if out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return LiveDisplay(out, lines)
    return PlainDisplay(out)


class PlainDisplay:
    """Lines at the start and end of targets, for logs and pipes."""

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
        self._print(word, line.target, line.took, reason)
        for detail in details:
            self._print("", detail)
        if line.status == "failed" and line.log:
            self._print("", f"log: {line.log}")

    def close(self) -> None:
        """Do nothing: lines stay."""

    def _print(self, word: str, *rest: str) -> None:
        text = "  ".join(part for part in rest if part)
        self._out.write(f"{word:<11}  {printable_line(text)}\n")
        self._out.flush()


class LiveDisplay:
    """Permanent lines of finished targets, and redrawn running targets below."""

    def __init__(self, out: TextIO, lines: Mapping[str, TargetLine]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._lines = lines
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

    def started(self, line: TargetLine) -> None:
        """Start drawing with the first target."""
        del line
        self._live.start()

    def waits(self, line: TargetLine, holder: str) -> None:
        """Start drawing: the target's last message names the holder."""
        del holder
        self.started(line)

    def ended(self, line: TargetLine) -> None:
        """Print the permanent line."""
        from rich.text import Text

        text = Text.assemble(_MARKS[line.status], f" {line.target}  ", (line.took, "cyan"))
        details: list[str] = []
        if line.status == "restored":
            text.append("from the store", "dim")
        elif line.status == "passed":
            why = "" if line.why == _FIRST_BUILD else line.why
            text.append(f"  {printable_line(why)}".rstrip(), "dim")
        elif line.reason:
            reason, *details = printable(line.reason).splitlines()
            text.append(f"\n  {reason}", "red" if line.status == "failed" else "dim")
        self._live.refresh()  # else the target is shown as running below its own last line
        self._console.print(text)
        below = Text("\n").join(Text(f"  {detail}") for detail in details)
        if line.status == "failed" and line.log:
            below.append(("\n" if details else "") + f"  log: {printable_line(line.log)}", "dim")
        if below:  # unwrapped, so that YAML can be copied from a narrow terminal
            self._console.print(below, soft_wrap=True)

    def close(self) -> None:
        """Remove the running targets."""
        self._live.stop()

    def _render(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        table = Table.grid(padding=(0, 1), expand=True)  # expanded, only the last column shrinks
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        lines = list(self._lines.values())
        for line in (line for line in lines if line.status == "running"):
            frame, elapsed = _FRAMES[int(now * 8) % len(_FRAMES)], duration(now - line.began)
            why = "" if line.why == _FIRST_BUILD else line.why
            message = Text(printable_line(line.message or why), "dim")
            table.add_row(frame, line.target, Text(elapsed, "cyan"), message)
        done = sum(line.status not in ("running", "not run") for line in lines)
        table.add_row("", Text(f"{done} of {len(lines)} targets done", "dim"))
        return table
