"""``doit plan``: what would run, in order, and how long that usually takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from buildsys.cli.console.listing import Entry, write_page
from buildsys.cli.console.target_line import duration
from buildsys.cli.explain.explain import explanation_json, write_json
from buildsys.cli.session import Session
from buildsys.cli.targets import chosen_targets, explanations, open_project
from buildsys.execution.freshness import FRESH, STALE, Explanation
from buildsys.execution.stale_reasons import summarize_reasons

SCHEMA = "buildsys/plan/1"
_SHOWN_REASONS = 2


def plan_run(root: Path, names: Sequence[str], out: TextIO, *, jobs: int, as_json: bool) -> None:
    """Print what a run would do, in order.

    Raises: UsageError: a name is not known. ManifestErrors: the manifests are wrong.
    """
    session = open_project(root)
    found = explanations(session, chosen_targets([session], names))
    write_plan(session, found.values(), out, jobs=jobs, as_json=as_json)


def write_plan(
    session: Session, found: Iterable[Explanation], out: TextIO, *, jobs: int, as_json: bool
) -> None:
    """Print what becomes of targets, in order, without those that are fresh."""
    steps = [one for one in found if one.state != FRESH]
    expected = _Expected.of(session, steps, jobs)
    if as_json:
        listed = [explanation_json(one) for one in steps]
        write_json(out, {"schema": SCHEMA, "jobs": jobs, **expected.as_json(), "targets": listed})
        return
    width = max((len(one.target) for one in steps), default=0)
    write_page(out, (_step(one, width) for one in steps), [expected.told()])


@dataclass(frozen=True)
class _Expected:
    """How long the steps of a plan usually take; those that never passed are not known."""

    sure_s: float  # of what runs in any case
    more_s: float  # of what may rerun
    longest_s: float  # of the steps that have to wait for each other
    jobs: int
    steps: int
    unknown: int

    @classmethod
    def of(cls, session: Session, steps: Sequence[Explanation], jobs: int) -> _Expected:
        taken = {one.target: one.expected_s or 0.0 for one in steps if not one.restorable}
        sure = sum(taken.get(one.target, 0.0) for one in steps if one.state == STALE)
        unknown = sum(one.expected_s is None for one in steps if not one.restorable)
        return cls(
            sure, sum(taken.values()) - sure, _longest(session, taken), jobs, len(steps), unknown
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "expected_s": self.sure_s,
            "expected_at_most_s": self.sure_s + self.more_s,
            "expected_parallel_s": max(self.longest_s, (self.sure_s + self.more_s) / self.jobs),
            "unknown": self.unknown,
        }

    def told(self) -> str:
        """Return the closing line."""
        if not self.steps:
            return "everything is up to date: nothing would run"
        count = f"{self.steps} target{'s' * (self.steps != 1)}"
        if self.unknown == self.steps == 1:
            return f"{count}; how long it takes is not known, it has never run"
        if self.unknown == self.steps:
            return f"{count}; how long they take is not known, none has ever run"
        parts = [f"{duration(self.sure_s)} for what will run"] if self.sure_s else []
        parts += [f"{duration(self.more_s)} for what may rerun"] if self.more_s else []
        parts += [
            f"at best {duration(self.as_json()['expected_parallel_s'])} with -n {self.jobs}"
        ] * (self.jobs > 1)
        parts += [f"not known for {self.unknown}"] if self.unknown else []
        return (
            f"{count}; usual time: {', '.join(parts)}"
            if parts
            else f"{count}; nothing has to be run, all is in the store"
        )


def _step(one: Explanation, width: int) -> Entry:
    word = "restore" if one.restorable else "run" if one.state == STALE else one.state
    usual = (
        "" if one.restorable else "unknown" if one.expected_s is None else duration(one.expected_s)
    )
    return Entry(
        word,
        f"{one.target:<{width}}  {usual:>9}",
        remark=summarize_reasons(one.reasons, _SHOWN_REASONS),
    )


def _longest(session: Session, taken: Mapping[str, float]) -> float:
    """Return the time of the longest chain of steps in which each waits for the one before."""
    ends: dict[str, float] = {}
    for target, seconds in taken.items():
        action = session.actions[target]
        ends[target] = seconds + max(
            (ends.get(before, 0.0) for before in (*action.after, *action.order)), default=0.0
        )
    return max(ends.values(), default=0.0)
