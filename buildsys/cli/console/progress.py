"""Plain and live displays of a run's targets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from buildsys.cli.console.target_line import OBVIOUS, ConsoleLine
from buildsys.report.formatting import duration
from buildsys.system.printable import printable, printable_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

    from buildsys.cli.console.estimate import Remaining

_MARKS = {
    "passed": ("✓", "green"),
    "restored": ("✓", "cyan"),
    "fresh": ("✓", "green"),
    "unavailable": ("-", "yellow"),
    "noisy": ("~", "yellow"),
    "failed": ("✗", "bold red"),
}
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAMES_PER_S = 4  # each takes 2 ms of a core, next to the stage or benchmark that runs
_PATIENCE_S = 0.5  # until targets are drawn whose worker has not started
_HEARTBEAT_S = 30.0  # some CI services end a job after minutes without output
_WIDEST_BAR = 30  # columns
_NARROW = 60  # columns, too few for the whole state


def no_estimate() -> Remaining | None:
    """Return nothing: the remaining time is unknown."""
    return None


def open_display(
    out: TextIO,
    lines: Mapping[str, ConsoleLine],
    estimate: Callable[[], Remaining | None] = no_estimate,
) -> PlainDisplay | LiveDisplay:
    """Return a live display for a capable terminal, else plain lines.

    CI services that give their jobs a terminal show its control characters. The methods are called
    from several threads, one at a time.
    """
    is_capable = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    if out.isatty() and is_capable and not os.environ.get("CI"):
        return LiveDisplay(out, lines, estimate)
    return PlainDisplay(out, lines, estimate)


def state_of(lines: Mapping[str, ConsoleLine]) -> str:
    """Return the number of finished targets."""
    done = sum(line.status not in ("running", "not run") for line in lines.values())
    return f"{done} of {len(lines)} targets done"


class PlainDisplay:
    """Lines at the start and end of targets, for logs and pipes.

    A long stage has one every half minute as well.
    """

    def __init__(
        self,
        out: TextIO,
        lines: Mapping[str, ConsoleLine],
        estimate: Callable[[], Remaining | None] = no_estimate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._lines = lines
        self._estimate = estimate
        self._clock = clock
        self._closed = threading.Event()
        self._heart: threading.Thread | None = None
        self._shown: dict[str, float] = {}  # when a running or waiting target had its last line

    def started(self, line: ConsoleLine) -> None:
        """Print a running target and the reason."""
        self._print("run", line.target, f"… {line.why}" if line.why else "")
        self._watch(line)

    def works(self) -> None:
        """Do nothing: the line is there."""

    def waits(self, line: ConsoleLine, holder: str) -> None:
        """Print the process blocking a target."""
        self._print("waits", line.target, f"for {holder}")
        self._watch(line)

    def ended(self, line: ConsoleLine) -> None:
        """Print a target's end, with its time and key figure or reason."""
        word = "done" if line.status == "passed" else line.status
        reason, *details = line.reason.splitlines() or [""]
        self._print(word, line.target, line.took, reason or line.figure)
        for detail in details:
            self._print("", detail)
        if line.status == "failed" and line.log:
            self._print("", f"log: {line.log}")

    def _watch(self, line: ConsoleLine) -> None:
        self._shown[line.target] = self._clock()
        if self._heart is None:
            self._heart = threading.Thread(target=self._keep_beating, daemon=True)
            self._heart.start()

    def beat(self) -> None:
        """Print running targets without a line in the last half minute."""
        now, state = self._clock(), ""
        for target, shown in list(self._shown.items()):
            line = self._lines[target]
            if line.status != "running":
                self._shown.pop(target, None)
            elif now - shown >= _HEARTBEAT_S:
                self._shown[target] = now
                if not state:
                    remaining = self._estimate()
                    left = f", {remaining}" if remaining else ""
                    state = f"({state_of(self._lines)}{left})"
                self._print("running", target, duration(now - line.began), line.activity, state)

    def close(self) -> None:
        """End the thread; the lines stay."""
        self._closed.set()
        if self._heart is not None:
            self._heart.join()

    def _keep_beating(self) -> None:
        with suppress(OSError, ValueError):  # nobody reads the output any more
            while not self._closed.wait(1.0):
                self.beat()

    def _print(self, word: str, *rest: str) -> None:
        text = "  ".join(part for part in rest if part)
        self._out.write(f"{word:<11}  {printable_line(text)}\n")
        self._out.flush()


class LiveDisplay:
    """Permanent lines of finished targets, and redrawn running targets and progress below."""

    def __init__(
        self,
        out: TextIO,
        lines: Mapping[str, ConsoleLine],
        estimate: Callable[[], Remaining | None] = no_estimate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._lines = lines
        self._estimate = estimate
        self._clock = clock
        self._began = clock()
        self._share = 0.0  # the work done; never shrinks
        self._drawing = threading.RLock()
        self._later: threading.Timer | None = None
        self._is_closed = False

    @cached_property
    def _console(self) -> Console:
        from buildsys.cli.console.rows import text_console

        return text_console(self._out)

    @cached_property
    def _live(self) -> Live:
        from rich.live import Live

        # doit exchanges the standard streams from several threads under -n
        return Live(
            console=self._console,
            get_renderable=self.render,
            transient=True,
            refresh_per_second=_FRAMES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def started(self, line: ConsoleLine) -> None:
        """Draw it soon: importing rich at once would delay the worker."""
        line.message = line.message or "starting"
        if self._later is None:
            self._later = threading.Timer(_PATIENCE_S, self.works)
            self._later.daemon = True
            self._later.start()

    def works(self) -> None:
        """Start drawing."""
        with self._drawing:
            if not self._is_closed:
                self._live.start()

    def waits(self, line: ConsoleLine, holder: str) -> None:
        """Start drawing: the target's last message names the holder."""
        del line, holder
        self.works()

    def ended(self, line: ConsoleLine) -> None:
        """Print the permanent line."""
        from rich.padding import Padding
        from rich.text import Text

        text = Text.assemble(_MARKS[line.status], f" {line.target}  ", (line.took, "cyan"))
        details: list[str] = []
        reason = ""
        if line.status == "restored":
            text.append("from the store", "dim")
        elif line.status == "passed":
            why = "" if line.why in OBVIOUS else line.why
            text.append(f"  {printable_line(line.figure)}".rstrip())
            text.append(f"  {printable_line(why)}".rstrip(), "dim")
        elif line.reason:
            reason, *details = printable(line.reason).splitlines()
        with self._drawing:
            self._live.refresh()  # else the target is shown as running below its own last line
        self._console.print(text, no_wrap=True, overflow="ellipsis")
        if reason:
            style = "red" if line.status == "failed" else "dim"
            self._console.print(Padding(Text(reason, style), (0, 0, 0, 2)))
        below = Text("\n").join(Text(f"  {detail}") for detail in details)
        if line.status == "failed" and line.log:
            below.append(("\n" if details else "") + f"  log: {printable_line(line.log)}", "dim")
        if below:  # unwrapped, so that YAML can be copied from a narrow terminal
            self._console.print(below, soft_wrap=True)

    def warn(self, warning: str) -> None:
        """Print a warning above the running targets."""
        from rich.text import Text

        text = f"buildsys: warning: {printable_line(warning)}"
        with self._drawing:
            self._console.print(Text(text, "yellow"), soft_wrap=True)

    def close(self) -> None:
        """Remove the running targets."""
        if self._later is not None:
            self._later.cancel()
        with self._drawing:
            self._is_closed = True
            self._live.stop()

    def render(self) -> RenderableType:
        """Return the running targets above the progress bar."""
        from rich.console import Group

        now = self._clock()
        return Group(self._running(now), self._progress(now))

    def _running(self, now: float) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2), expand=True)  # expanded, only the last column shrinks
        for _ in range(2):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        running = [line for line in [*self._lines.values()] if line.status == "running"]
        most = max(1, self._console.height - 3)  # else the terminal would scroll at every frame
        for line in running[:most]:
            frame = _FRAMES[int(now * _FRAMES_PER_S) % len(_FRAMES)]
            elapsed = Text(duration(now - line.began), "cyan")
            table.add_row(f"{frame} {line.target}", elapsed, Text(line.activity, "dim"))
        return table

    def _progress(self, now: float) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        elapsed, remaining = now - self._began, self._estimate()
        if remaining is not None and elapsed + remaining.seconds:
            self._share = max(self._share, elapsed / (elapsed + remaining.seconds))
        width = max(4, min(_WIDEST_BAR, self._console.width // 5))
        parts = [state_of(self._lines), duration(elapsed), str(remaining or "")]
        if self._console.width < _NARROW:  # the remaining time says most
            parts = [parts[0].removesuffix(" targets done"), parts[2] or parts[1]]
        table = Table.grid(padding=(0, 1))
        table.add_column(width=width)
        table.add_column(no_wrap=True, overflow="ellipsis")
        bar = ProgressBar(completed=self._share, total=1.0, width=width)
        table.add_row(bar, Text("  ".join(filter(None, parts)), "dim"))
        return table
