"""The targets of a run as the console shows them, alone and grouped by what they lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from buildsys.report.formatting import duration, plural
from buildsys.stages.table import ENGINE, ENGINE_STAGES, STAGES, target_of
from buildsys.system.files import read_end
from buildsys.system.printable import printable_line

ENDED = ("passed", "restored", "unavailable", "noisy", "failed")
OBVIOUS = ("never built", "requested")  # reasons in the executor's words, not repeated
_MOST_CAUSES = 12  # causes of shortfalls, if there is nothing to do
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


def causes(lines: Iterable[ConsoleLine], reason: Callable[[ConsoleLine], str]) -> dict[str, str]:
    """List the causes of unavailable targets, for a missing engine the engine's."""
    lacking = {line.target: line for line in lines if line.status == "unavailable"}
    return {target: reason(lacking.get(engine_of(line), line)) for target, line in lacking.items()}


def group_lines(lines: Iterable[ConsoleLine], cause: Mapping[str, str]) -> list[list[ConsoleLine]]:
    """Group lines with one cause; others stay alone."""
    groups: dict[str, list[ConsoleLine]] = {}
    for line in lines:
        groups.setdefault(cause.get(line.target, line.target), []).append(line)
    return [*groups.values()]


def up_to_date_lines(lines: Iterable[ConsoleLine]) -> Iterator[str]:
    """Write the unavailable and noisy targets of a run without work, and counts."""
    order = [stage.name for stage in STAGES]  # remembered targets have none
    lines = sorted(lines, key=lambda line: (line.model, line.variant, order.index(line.stage)))
    if not lines:
        yield "no targets: nothing is selected, or there is no manifest yet"
        return
    cause = causes(lines, lambda line: line.reason)
    cause |= {line.target: line.reason for line in lines if line.status == "noisy"}
    groups = group_lines((line for line in lines if line.target in cause), cause)
    for group in groups[:_MOST_CAUSES]:
        reason = cause[group[0].target].partition("\n")[0]
        yield f"{group[0].status:<11}  {group_name(group)}  {reason}"
    if more := sum(map(len, groups[_MOST_CAUSES:])):
        yield f"and {plural(more, 'more target')}; `buildsys explain` lists all"
    counts = Counter(line.status for line in lines)
    others = ("unavailable", "noisy", "ignored")
    parts = [f"{counts[status]} {status}" for status in others if counts[status]]
    yield f"everything is up to date ({', '.join((plural(counts['fresh'], 'target'), *parts))})"


def row_title(group: Sequence[ConsoleLine]) -> str:
    """Write the stages and engines of a group: ``verify, bench trt-fp32, trt-fp16``."""
    stages, variants = (_distinct(group, part) for part in ("stage", "variant"))
    return f"{', '.join(stages)} {', '.join(variants)}".rstrip()


def group_name(group: Sequence[ConsoleLine]) -> str:
    """Write the name of one target, or of all in a group."""
    models = _distinct(group, "model")
    if len(models) > 1:
        return f"{plural(len(group), 'target')} of {plural(len(models), 'model')}"
    return group[0].target if len(group) == 1 else f"{row_title(group)} of {models[0]}"


def _distinct(group: Iterable[ConsoleLine], part: str) -> list[str]:
    return list(dict.fromkeys(getattr(line, part) for line in group))
