"""Display of a run's targets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from buildsys.cli.console.lines import ConsoleLine
from buildsys.report.formatting import duration
from buildsys.system.printable import printable_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID

_STYLES = {
    "done": "green",
    "restored": "cyan",
    "unavailable": "yellow",
    "noisy": "yellow",
    "failed": "bold red",
}
_FRAMES_PER_S = 4  # each takes 2 ms of a core, next to the stage or benchmark that runs
_HEARTBEAT_S = 30.0  # some CI services end a job after minutes without output


class Display:
    """Lines of finished targets, with the running ones redrawn below on a capable terminal.

    In logs and pipes, lines at the start of targets, and every half minute. CI services that give
    their jobs a terminal show its control characters. The methods are called from several
    threads, one at a time.
    """

    def __init__(self, out: TextIO, lines: Mapping[str, ConsoleLine]) -> None:
        self._out = out
        self._lines = lines
        is_capable = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self._is_live = out.isatty() and is_capable and not os.environ.get("CI")
        self._tasks: dict[str, TaskID] = {}
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._keep_beating, daemon=True)

    @cached_property
    def _progress(self) -> Progress:
        from rich import progress
        from rich.constrain import Constrain
        from rich.table import Column
        from rich.text import Text

        from buildsys.cli.console.rows import text_console

        class Activity(progress.ProgressColumn):
            """What a target does at the moment."""

            def render(self, task: progress.Task) -> Text:
                return Text(task.fields["activity"](), "dim")

        console = text_console(self._out)

        class Bars(progress.Progress):
            """Bars with room for the ^C of the terminal, which would wrap and shift the rows."""

            def get_renderables(self) -> Iterator[RenderableType]:
                table = self.make_tasks_table(self.tasks)
                yield Constrain(table, console.width - len("^C"))

        bars = Bars(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.TimeElapsedColumn(),
            Activity(Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            expand=True,
            transient=True,
            refresh_per_second=_FRAMES_PER_S,
            # doit exchanges the standard streams from several threads under -n
            redirect_stdout=False,
            redirect_stderr=False,
        )
        bars.add_task("total", total=None, activity=self._total)
        return bars

    def _total(self) -> str:
        ended = sum(line.status not in ("running", "not run") for line in self._lines.values())
        return f"{ended} of {len(self._lines)} targets done"

    def started(self, line: ConsoleLine, word: str, note: str) -> None:
        """Show a running or waiting target and the reason."""
        if not self._is_live:
            if self._heart.ident is None:
                self._heart.start()
            self._print(word, line.target, note)
        elif line.target not in self._tasks and not self._closed.is_set():
            self._progress.start()
            task = self._progress.add_task(line.target, total=None, activity=lambda: line.activity)
            self._tasks[line.target] = task

    def ended(self, line: ConsoleLine) -> None:
        """Print a target's end, with its time and key figure or reason."""
        if line.target in self._tasks:
            self._progress.remove_task(self._tasks.pop(line.target))
        word = "done" if line.status == "passed" else line.status
        reason, *details = line.reason.splitlines() or [""]
        self._print(word, line.target, line.took, reason or line.figure)
        if line.status == "failed" and line.log:
            details.append(f"log: {line.log}")
        for detail in details:
            self._print("", detail)

    def warn(self, warning: str) -> None:
        """Print a warning, on a terminal above the running targets."""
        from buildsys.store.state_db import warn_on_stderr

        if self._is_live:
            self._print("warning", warning)
        else:
            warn_on_stderr(warning)

    def beat(self) -> None:
        """Print the running targets."""
        for line in list(self._lines.values()):
            if line.status == "running":
                taken = duration(time.monotonic() - line.began)
                self._print("running", line.target, taken, line.activity, f"({self._total()})")

    def close(self) -> None:
        """Remove the running targets; the lines stay."""
        self._closed.set()
        if "_progress" in vars(self):
            self._progress.stop()

    def _keep_beating(self) -> None:
        with suppress(OSError, ValueError):  # nobody reads the output any more
            while not self._closed.wait(_HEARTBEAT_S):
                self.beat()

    def _print(self, word: str, *rest: str) -> None:
        text = f"{word:<11}  {printable_line('  '.join(part for part in rest if part))}"
        if self._is_live:
            from rich.text import Text

            styled = Text(text)
            styled.stylize(_STYLES.get(word, "yellow"), 0, len(word))
            is_short = word in ("done", "restored")
            # reasons stay whole, so that YAML can be copied from a narrow terminal
            self._progress.console.print(
                styled, no_wrap=is_short, overflow="ellipsis", soft_wrap=not is_short
            )
            return
        self._out.write(f"{text}\n")
        self._out.flush()
