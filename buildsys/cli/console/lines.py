"""The targets of a run as the console shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from buildsys.report.formatting import duration, plural
from buildsys.stages.table import ENGINE, ENGINE_STAGES, STAGES, target_of
from buildsys.system.files import read_end
from buildsys.system.printable import printable_line

ENDED = ("passed", "restored", "unavailable", "noisy", "failed")
OBVIOUS = ("never built", "requested")  # reasons in the executor's words, not repeated
_SHORTFALLS = ("unavailable", "noisy")
_MOST_SHORTFALLS = 12  # listed if there is nothing to do
_TAIL_BYTES = 4096  # bytes at the end of a log


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


def up_to_date_lines(lines: Iterable[ConsoleLine]) -> Iterator[str]:
    """Write the unavailable and noisy targets of a run without work, and counts."""
    order = [stage.name for stage in STAGES]  # remembered targets have none
    lines = sorted(lines, key=lambda line: (line.model, line.variant, order.index(line.stage)))
    if not lines:
        yield "no targets: nothing is selected, or there is no manifest yet"
        return
    by_target = {line.target: line for line in lines}
    short = [line for line in lines if line.status in _SHORTFALLS]
    short = [line for line in short if not is_implied(line, by_target)]
    for line in short[:_MOST_SHORTFALLS]:
        yield f"{line.status:<11}  {line.target}  {line.reason.partition(chr(10))[0]}"
    if (more := len(short) - _MOST_SHORTFALLS) > 0:
        yield f"and {plural(more, 'more target')}; `buildsys explain` lists all"
    counts = Counter(line.status for line in lines)
    others = ("unavailable", "noisy", "ignored")
    parts = [f"{counts[status]} {status}" for status in others if counts[status]]
    yield f"everything is up to date ({', '.join((plural(counts['fresh'], 'target'), *parts))})"
