"""The targets of a run, and their display on a console."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from buildsys.errors import with_hint
from buildsys.report.formatting import duration, first_names, fold, plural
from buildsys.stages.table import ENGINE, ENGINE_STAGES, STAGES, target_of
from buildsys.system.files import read_end
from buildsys.system.printable import printable_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID

    from buildsys.cli.target_names import TargetNames

ENDED = ("passed", "restored", "unavailable", "noisy", "failed")
OBVIOUS = ("never built", "requested")  # reasons in the executor's words, not repeated
_SHORTFALLS = ("unavailable", "noisy")
_MOST_NAMES = 4  # with one remedy
_MOST_SHORTFALLS = 12  # listed if there is nothing to do
NO_TARGETS = "no targets: nothing is selected, or there is no manifest yet"
_TAIL_BYTES = 4096  # bytes at the end of a log
_STYLES = {
    "done": "green",
    "restored": "cyan",
    "unavailable": "yellow",
    "noisy": "yellow",
    "failed": "bold red",
}
_FRAMES_PER_S = 4  # each takes 2 ms of a core, next to the stage or benchmark that runs
_HEARTBEAT_S = 30.0  # some CI services end a job after minutes without output


@dataclass(slots=True)
class ConsoleLine:
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
    counter: str = ""  # samples, tactics or cases so far
    log_file: Path | None = None  # while it runs
    figure: str = ""  # its key figure
    reason: str = ""  # why it failed, is unavailable or noisy, or did not run
    hint: str = ""  # what to do
    log: str = ""  # path of its log, if not already in the reason
    recorded: bool = False  # unavailable or noisy in an earlier run, and not run in this one

    @property
    def has_ended(self) -> bool:
        """True if this run has built, restored or failed it."""
        return self.status in ENDED and not self.recorded

    @property
    def took(self) -> str:
        """Its time, "" if there is none."""
        return "" if self.seconds is None else duration(self.seconds)

    @property
    def sentence(self) -> str:
        """Its reason, with the remedy if there is room."""
        reason = self.reason.partition("\n")[0]
        text, rest = fold(with_hint(reason, self.hint))
        return fold(reason)[0] if rest or "\n" in self.hint else text

    @property
    def activity(self) -> str:
        """The present activity: counter, progress message and last log line."""
        why = "" if self.why in OBVIOUS else self.why
        logged = last_line(self.log_file) if self.log_file else ""
        # the counter first: a narrow terminal cuts the rest
        parts = (self.counter, self.message or why, "" if logged == self.message else logged)
        return " · ".join(printable_line(part) for part in parts if part)


def target_line(target: str, status: str = "not run") -> ConsoleLine:
    """Make the line of a target."""
    stage, model, variant = (*target.split(":", 2), "")[:3]
    return ConsoleLine(target, model, stage, variant, status)


def last_line(log: Path) -> str:
    """Read the last line of a log, "" without one; a progress bar's last state counts."""
    lines = read_end(log, _TAIL_BYTES).replace("\r", "\n").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return "" if last.startswith("# ") else last  # our header


def engine_of(line: ConsoleLine) -> str:
    """Name the engine target needed by a target, "" for none."""
    is_of_engine = line.stage in ENGINE_STAGES and line.stage != ENGINE
    return target_of(ENGINE, line.model, line.variant) if is_of_engine else ""


def is_implied(line: ConsoleLine, lines: Mapping[str, ConsoleLine]) -> bool:
    """Check for a target whose own engine is unavailable: only the engine is listed."""
    engine = lines.get(engine_of(line))
    is_gone = engine is not None and engine.status == "unavailable"
    return is_gone and line.status in ("running", "unavailable")


def broken_lines(session: TargetNames) -> Iterator[str]:
    """Write the broken manifests that a run leaves out."""
    for file, errors in session.broken.items():
        yield "\n  ".join((f"{'failed':<11}  manifest:{file}", *map(str, errors)))


def up_to_date_lines(lines: Iterable[ConsoleLine]) -> Iterator[str]:
    """Write the unavailable and noisy targets of a run without work, and counts."""
    order = [stage.name for stage in STAGES]  # remembered targets have none
    lines = sorted(lines, key=lambda line: (line.model, line.variant, order.index(line.stage)))
    if not lines:
        yield NO_TARGETS
        return
    by_target = {line.target: line for line in lines}
    short = [line for line in lines if line.status in _SHORTFALLS]
    short = [line for line in short if not is_implied(line, by_target)]
    for line in short[:_MOST_SHORTFALLS]:
        yield f"{line.status:<11}  {line.target}  {line.sentence}"
    if (more := len(short) - _MOST_SHORTFALLS) > 0:
        yield f"and {plural(more, 'more target')}; `buildsys explain` lists all"
    yield from remedies(line for line in short if line.hint not in line.sentence)
    counts = Counter(line.status for line in lines)
    others = ("unavailable", "noisy", "ignored")
    parts = [f"{counts[status]} {status}" for status in others if counts[status]]
    yield f"everything is up to date ({', '.join((plural(counts['fresh'], 'target'), *parts))})"


def remedies(lines: Iterable[ConsoleLine]) -> Iterator[str]:
    """Write what to do about unavailable and noisy targets, each remedy once."""
    targets: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if line.hint and line.status in _SHORTFALLS:
            targets.setdefault((line.status, line.hint), []).append(line.target)
    for (status, hint), names in targets.items():
        text = f"{status:<11}  {first_names(names, _MOST_NAMES)}: {hint}"
        yield text.replace("\n", "\n  ")


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

    def note(self, line: ConsoleLine, word: str, note: str) -> None:
        """Print a line about a running target."""
        self._print(word, line.target, note)

    def ended(self, line: ConsoleLine) -> None:
        """Print a target's end, with its time and key figure or reason."""
        if line.target in self._tasks:
            self._progress.remove_task(self._tasks.pop(line.target))
        word = "done" if line.status == "passed" else line.status
        self._print(word, line.target, line.took, line.sentence or line.figure)
        if line.status == "failed":  # the end of the run has all remedies
            is_whole = line.hint in line.sentence
            details = [] if is_whole else [fold(hint)[0] for hint in line.hint.splitlines()]
            for detail in (*details, *([f"log: {line.log}"] if line.log else [])):
                self._print("", detail)

    def write(self, text: str) -> None:
        """Print the text of another task of doit."""
        if "_progress" in vars(self) and not self._closed.is_set():
            self._progress.console.print(text, end="", soft_wrap=True)
        else:
            self._out.write(text)

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
                activity = fold(line.activity)[0]
                self._print("running", line.target, taken, activity, f"({self._total()})")

    def close(self) -> None:
        """Remove the running targets; the lines stay."""
        self._closed.set()
        if "_progress" in vars(self):
            self._progress.stop()

    def _keep_beating(self) -> None:
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
