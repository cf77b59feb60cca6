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
    from rich.console import RenderableType
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


def _count_finished(lines: Mapping[str, ConsoleLine]) -> int:
    return sum(line.status not in ("running", "not run") for line in lines.values())


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

    def started(self, line: ConsoleLine) -> None:
        """Print a running target and the reason."""
        self._print("run", line.target, f"… {line.why}" if line.why else "")

    def waits(self, line: ConsoleLine, holder: str) -> None:
        """Print the process blocking a target."""
        self._print("waits", line.target, f"for {holder}")

    def ended(self, line: ConsoleLine) -> None:
        """Print a target's end, with its time and key figure or reason."""
        word = "done" if line.status == "passed" else line.status
        reason, *details = line.reason.splitlines() or [""]
        self._print(word, line.target, line.took, reason or line.figure)
        for detail in details:
            self._print("", detail)
        if line.status == "failed" and line.log:
            self._print("", f"log: {line.log}")

    def warn(self, warning: str) -> None:
        """Print a warning on stderr."""
        from buildsys.store.state_db import warn_on_stderr

        warn_on_stderr(warning)

    def beat(self) -> None:
        """Print the running targets."""
        state = f"{_count_finished(self._lines)} of {len(self._lines)} targets done"
        state = f"({', '.join(filter(None, (state, self._time_left())))})"
        for line in list(self._lines.values()):
            if line.status == "running":
                taken = duration(time.monotonic() - line.began)
                self._print("running", line.target, taken, line.activity, state)

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
    """Permanent lines of finished targets, and redrawn running targets and progress below."""

    def __init__(
        self, out: TextIO, lines: Mapping[str, ConsoleLine], time_left: Callable[[], str]
    ) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        from buildsys.cli.console.rows import text_console

        self._lines = lines
        self._time_left = time_left
        self._console = text_console(out)
        self._is_closed = False
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()  # of the tasks; a failing redraw would end rich's thread
        self._running = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn(
                "{task.fields[activity]}",
                style="dim",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=self._console,
            expand=True,
        )
        self._total = Progress(
            BarColumn(bar_width=max(4, min(30, self._console.width // 5))),
            TextColumn("{task.completed:.0f} of {task.total:.0f} targets done"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", style="dim"),
            console=self._console,
        )
        self._all = self._total.add_task("", total=len(lines))
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            transient=True,
            refresh_per_second=_FRAMES_PER_S,
            # doit exchanges the standard streams from several threads under -n
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def started(self, line: ConsoleLine) -> None:
        """Draw a target."""
        if self._is_closed:
            return
        self._live.start()
        with self._lock:
            task = self._running.add_task(line.target, total=None, activity=line.activity)
            self._tasks[line.target] = task

    def waits(self, line: ConsoleLine, holder: str) -> None:
        """Draw a target; its last message names the holder."""
        del holder
        if line.target not in self._tasks:
            self.started(line)

    def ended(self, line: ConsoleLine) -> None:
        """Print the permanent line."""
        from rich.padding import Padding
        from rich.text import Text

        with self._lock:
            if line.target in self._tasks:
                self._running.remove_task(self._tasks.pop(line.target))
        text = Text.assemble(_MARKS[line.status], f" {line.target}  ", (line.took, "cyan"))
        reason, *details = printable(line.reason).splitlines() or [""]
        if line.status == "restored":
            text.append("from the store", "dim")
        elif line.status == "passed":
            why = "" if line.why in OBVIOUS else line.why
            text.append(f"  {printable_line(line.figure)}".rstrip())
            text.append(f"  {printable_line(why)}".rstrip(), "dim")
        self._console.print(text, no_wrap=True, overflow="ellipsis")
        if reason:
            style = "red" if line.status == "failed" else "dim"
            self._console.print(Padding(Text(reason, style), (0, 0, 0, 2)))
        if line.status == "failed" and line.log:
            details.append(f"log: {printable_line(line.log)}")
        for detail in details:  # unwrapped, so that YAML can be copied from a narrow terminal
            self._console.print(Text(f"  {detail}"), soft_wrap=True)

    def warn(self, warning: str) -> None:
        """Print a warning above the running targets."""
        from rich.text import Text

        text = f"buildsys: warning: {printable_line(warning)}"
        self._console.print(Text(text, "yellow"), soft_wrap=True)

    def close(self) -> None:
        """Remove the running targets."""
        self._is_closed = True
        self._live.stop()

    def _render(self) -> RenderableType:
        """Refresh the running targets above the progress bar."""
        from rich.console import Group

        with self._lock:
            for target, task in self._tasks.items():
                self._running.update(task, activity=self._lines[target].activity)
        finished = _count_finished(self._lines)
        self._total.update(self._all, completed=finished, description=self._time_left())
        return Group(self._running, self._total)


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
