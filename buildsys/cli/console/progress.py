"""Plain and live displays of a run's targets, and its remaining time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from buildsys.cli.console.lines import OBVIOUS, ConsoleLine
from buildsys.cli.session import BuildSession
from buildsys.execution.freshness import FRESH
from buildsys.report.formatting import duration
from buildsys.stages.table import stage_info
from buildsys.system.printable import printable, printable_line

if TYPE_CHECKING:
    from rich.progress import TaskID

_MARKS = {
    "passed": ("✓", "green"),
    "restored": ("✓", "cyan"),
    "fresh": ("✓", "green"),
    "unavailable": ("-", "yellow"),
    "noisy": ("~", "yellow"),
    "failed": ("✗", "bold red"),
}
_FRAMES_PER_S = 4  # each takes 2 ms of a core, next to the stage or benchmark that runs
_RESTORED_S = 0.2
_LEAST_LEFT = 0.1  # share of the usual time left to a target that exceeds it
_HEARTBEAT_S = 30.0  # some CI services end a job after minutes without output


def open_display(
    out: TextIO, lines: Mapping[str, ConsoleLine], time_left: Callable[[], str] = str
) -> PlainDisplay | LiveDisplay:
    """Open a live display on a capable terminal, else plain lines.

    CI services that give their jobs a terminal show its control characters. The methods are called
    from several threads, one at a time.
    """
    is_capable = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    if out.isatty() and is_capable and not os.environ.get("CI"):
        return LiveDisplay(out, lines, time_left)
    return PlainDisplay(out, lines, time_left)


def _count_finished(lines: Mapping[str, ConsoleLine]) -> str:
    finished = sum(line.status not in ("running", "not run") for line in lines.values())
    return f"{finished} of {len(lines)} targets done"


class PlainDisplay:
    """Lines at the start and end of targets, and every half minute, for logs and pipes."""

    def __init__(
        self, out: TextIO, lines: Mapping[str, ConsoleLine], time_left: Callable[[], str]
    ) -> None:
        self._out = out
        self._lines = lines
        self._time_left = time_left
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._keep_beating, daemon=True)
        self._heart.start()

    def started(self, line: ConsoleLine, word: str, note: str) -> None:
        """Print a running or waiting target and the reason."""
        self._print(word, line.target, note)

    def ended(self, line: ConsoleLine) -> None:
        """Print a target's end, with its time and key figure or reason."""
        word = "done" if line.status == "passed" else line.status
        reason, *details = line.reason.splitlines() or [""]
        self._print(word, line.target, line.took, reason or line.figure)
        for detail in (*details, *line.log_lines):
            self._print("", detail)

    def warn(self, warning: str) -> None:
        """Print a warning on stderr."""
        from buildsys.store.state_db import warn_on_stderr

        warn_on_stderr(warning)

    def beat(self) -> None:
        """Print the running targets."""
        state = ", ".join(filter(None, (_count_finished(self._lines), self._time_left())))
        for line in list(self._lines.values()):
            if line.status == "running":
                taken = duration(time.monotonic() - line.began)
                self._print("running", line.target, taken, line.activity, f"({state})")

    def close(self) -> None:
        """End the thread; the lines stay."""
        self._closed.set()
        self._heart.join()

    def _keep_beating(self) -> None:
        with suppress(OSError, ValueError):  # nobody reads the output any more
            while not self._closed.wait(_HEARTBEAT_S):
                self.beat()

    def _print(self, word: str, *rest: str) -> None:
        text = "  ".join(part for part in rest if part)
        self._out.write(f"{word:<11}  {printable_line(text)}\n")
        self._out.flush()


class LiveDisplay:
    """Permanent lines of finished targets, and redrawn progress and running targets below."""

    def __init__(
        self, out: TextIO, lines: Mapping[str, ConsoleLine], time_left: Callable[[], str]
    ) -> None:
        from rich import progress
        from rich.table import Column
        from rich.text import Text

        from buildsys.cli.console.rows import text_console

        class Activity(progress.ProgressColumn):
            """What a target does at the moment."""

            def render(self, task: progress.Task) -> Text:
                return Text(task.fields["activity"](), "dim")

        def total() -> str:
            return ", ".join(filter(None, (_count_finished(lines), time_left())))

        self._is_closed = False
        self._tasks: dict[str, TaskID] = {}
        self._progress = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.TimeElapsedColumn(),
            Activity(Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=text_console(out),
            expand=True,
            transient=True,
            refresh_per_second=_FRAMES_PER_S,
            # doit exchanges the standard streams from several threads under -n
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._progress.add_task("total", total=None, activity=total)

    def started(self, line: ConsoleLine, word: str, note: str) -> None:
        """Draw a target; its activity says why it runs or waits."""
        del word, note
        if self._is_closed or line.target in self._tasks:
            return
        self._progress.start()
        task = self._progress.add_task(line.target, total=None, activity=lambda: line.activity)
        self._tasks[line.target] = task

    def ended(self, line: ConsoleLine) -> None:
        """Print the permanent line."""
        from rich.padding import Padding
        from rich.text import Text

        if line.target in self._tasks:
            self._progress.remove_task(self._tasks.pop(line.target))
        console = self._progress.console
        text = Text.assemble(_MARKS[line.status], f" {line.target}  ", (line.took, "cyan"))
        reason, *details = printable(line.reason).splitlines() or [""]
        if line.status == "restored":
            text.append("from the store", "dim")
        elif line.status == "passed":
            why = "" if line.why in OBVIOUS else line.why
            text.append(f"  {printable_line(line.figure)}".rstrip())
            text.append(f"  {printable_line(why)}".rstrip(), "dim")
        console.print(text, no_wrap=True, overflow="ellipsis")
        if reason:
            style = "red" if line.status == "failed" else "dim"
            console.print(Padding(Text(reason, style), (0, 0, 0, 2)))
        for detail in (*details, *line.log_lines):
            # unwrapped, so that YAML can be copied from a narrow terminal
            console.print(Text(f"  {printable_line(detail)}"), soft_wrap=True)

    def warn(self, warning: str) -> None:
        """Print a warning above the running targets."""
        from rich.text import Text

        text = f"buildsys: warning: {printable_line(warning)}"
        self._progress.console.print(Text(text, "yellow"), soft_wrap=True)

    def close(self) -> None:
        """Remove the running targets."""
        self._is_closed = True
        self._progress.stop()


class Estimate:
    """The remaining time of a run: the median times of earlier runs, or their stages' defaults.

    Raises: BuildsysError, OSError, ValueError: the state cannot be read.
    """

    def __init__(self, session: BuildSession, lines: Mapping[str, ConsoleLine]) -> None:
        self._lines = lines
        self._jobs = session.jobs
        self._usual_s: dict[str, float] = {}  # of the targets that will probably run
        self._never_built: set[str] = set()
        waiting = [name for name, line in lines.items() if line.status in ("not run", "running")]
        for target, state in session.executor.forecast(waiting).items():
            if state.state == FRESH and not session.always:
                continue
            usual_s = _RESTORED_S if state.restorable else state.expected_s
            if usual_s is None:
                action = session.actions[target]
                usual_s = action.usual_s or stage_info(action.stage).usual_s
                self._never_built.add(target)
            self._usual_s[target] = usual_s

    def __str__(self) -> str:
        """Write ``about 3 min left``, or ``~3 min left, first build``."""
        total_s, new_s = 0.0, 0.0
        for target, usual_s in self._usual_s.items():
            line = self._lines[target]
            if line.status not in ("running", "not run") or line.reason:
                continue
            taken_s = time.monotonic() - line.began if line.status == "running" else 0.0
            left_s = max(usual_s - taken_s, _LEAST_LEFT * usual_s)
            total_s += left_s
            new_s += left_s if target in self._never_built else 0.0
        left = _rounded(total_s / self._jobs)
        return f"~{left} left, first build" if new_s > total_s / 2 else f"about {left} left"


def _rounded(seconds: float) -> str:
    """Write a duration without more digits than an estimate has."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return duration(60 * round(seconds / 60)).removesuffix(" 0 s")
