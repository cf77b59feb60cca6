"""Bisection between two states of a project: first over commits, then over their differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.bisect.builds import Judge, StateBuild, StateBuilder
from buildsys.bisect.differences import (
    Difference,
    Field,
    Mixture,
    Parts,
    State,
    UserFile,
    environment_differences,
    field_differences,
    file_differences,
    with_fields,
)
from buildsys.bisect.search import GOOD, UNRESOLVED, Answer, Cause, CauseSearch, find_boundary
from buildsys.errors import BuildsysError, CheckFailed, ManifestErrors, UsageError
from buildsys.execution.stale_reasons import StaleReason


class Point(NamedTuple):
    """A state of the project with its name."""

    name: str
    commit: str  # "" for uncommitted changes
    open: Callable[[], State]  # may take a checkout
    recorded: Parts | None = None  # libraries and devices of its targets, if not those of now


class Step(NamedTuple):
    """One test."""

    state: str
    verdict: str
    confidence: float
    text: str
    restored: int  # targets
    built: int


@dataclass
class Bisection:
    """The search, and what it has done so far."""

    builder: StateBuilder
    figure: str
    own_root: Path  # never written
    backup: Path
    report: Callable[[Step], None]
    steps: list[Step] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    inseparable: list[StaleReason] = field(default_factory=list)
    between: tuple[Point, Point] | None = None  # neighbouring commits, or the ends
    skipped: int = 0  # commits without a verdict between them

    def run(self, good: Point, bad: Point, commits: Sequence[Point], cheap: set[str]) -> Cause:
        """Find the cause; ``commits`` lie between both, oldest first, ``cheap`` are built ones.

        Raises: CheckFailed: there is no difference to explain. UsageError: an end has no figure.
        """
        first, last = self._end(good, "good"), self._end(bad, "bad")
        sides = good.recorded or first.parts, bad.recorded or last.parts
        self.inseparable = environment_differences(*sides)
        judge = Judge(self.builder, self.figure, first)
        try:
            whole = judge.calibrate(last)
        except CheckFailed as error:
            if self.inseparable:
                error.hint = "what differs cannot be changed here: "
                error.hint += ", ".join(map(str, self.inseparable))
            raise
        self._add(good.name, Answer(GOOD), first, judge.show(first))
        self._add(bad.name, whole, last, judge.show(last))
        ends = self._neighbours(judge, [good, *commits, bad], [first, last], cheap)
        return self._search(judge, *ends, whole)

    def _end(self, point: Point, name: str) -> StateBuild:
        build = self.builder.build(point.open(), name)
        if build.problem:
            problem = f"{point.name} has no {self.figure}: {build.problem}"
            raise UsageError(problem, "name another build")
        return build

    def _add(self, state: str, answer: Answer, build: StateBuild, text: str) -> Answer:
        self.steps.append(Step(state, *answer, text, build.restored, build.built))
        self.report(self.steps[-1])
        return answer

    def _neighbours(
        self, judge: Judge, points: Sequence[Point], ends: list[StateBuild], cheap: set[str]
    ) -> tuple[StateBuild, StateBuild]:
        """Narrow the ends down to neighbouring commits."""
        builds = {0: ends[0], len(points) - 1: ends[1]}

        def ask(place: int) -> str:
            point = points[place]
            try:
                verdict = judge.judge(self.builder.build(point.open()))
            except BuildsysError as error:  # no such model, or a broken manifest
                nothing = StateBuild(ends[0].state, self.backup, {}, problem=str(error))
                return self._add(point.name, Answer(UNRESOLVED), nothing, str(error)).verdict
            builds[place] = verdict.build
            return self._add(point.name, verdict.answer, verdict.build, verdict.text).verdict

        high = len(points) - 1
        boundary = find_boundary(high, ask, lambda place: points[place].commit in cheap)
        self.skipped = boundary.bad - boundary.good - 1
        self.between = points[boundary.good], points[boundary.bad]
        return builds[boundary.good], builds[boundary.bad]

    def _search(self, judge: Judge, good: StateBuild, bad: StateBuild, whole: Answer) -> Cause:
        """Search among the fields and files in which two builds differ."""
        roots = good.state.project.root, bad.state.project.root
        fields = field_differences(good.state.manifest, bad.state.manifest)
        self.differences = [f for f in fields if self._has_effect(f, good, bad)]
        files = file_differences(good.parts, bad.parts, roots)
        self.differences += files
        if not self.differences:
            raise CheckFailed(
                "no field and no file of the key differs",
                "the figure is not reproducible, or the cause is not in the key",
            )
        is_swapped = roots[0] == self.own_root and roots[1] != self.own_root
        base, other = (bad, good) if is_swapped else (good, bad)
        base_root = base.state.project.root
        if files and base_root == self.own_root:
            raise UsageError(
                "files differ, and there is no commit with either version", "name a commit"
            )
        names = [file.name for file in files]
        mixture = Mixture(base_root, other.state.project.root, names, self.backup)

        def test(numbers: Sequence[int]) -> Answer:
            chosen = [self.differences[number] for number in numbers]
            changed = {item.name for item in chosen if isinstance(item, UserFile)}
            mixture.write(set(names) - changed if is_swapped else changed)
            applied = [item for item in chosen if isinstance(item, Field)]
            manifest = with_fields(good.state.manifest, applied)
            build = self.builder.build(State(base.state.project, manifest))
            verdict = judge.judge(build)
            name = f"{len(chosen)} of {len(self.differences)} differences"
            return self._add(name, verdict.answer, build, verdict.text)

        return CauseSearch(len(self.differences), test).run(Answer(GOOD), whole)

    def _has_effect(self, changed: Field, good: StateBuild, bad: StateBuild) -> bool:
        """Check whether a field alone changes an action of the chain."""
        back = Field(changed.path, changed.new, changed.old)
        for build, one in ((good, changed), (bad, back)):
            manifest = with_fields(build.state.manifest, [one])
            try:
                plan = self.builder.plan(State(build.state.project, manifest))
            except (ManifestErrors, UsageError):
                return True
            if plan != build.actions:
                return True
        return False

    def as_json(self, cause: Cause) -> dict[str, Any]:
        """Convert the result for ``--json``."""
        assert self.between is not None
        return {
            "between": [{"name": p.name, "commit": p.commit} for p in self.between],
            "commits_skipped": self.skipped,
            "cause": [
                [{**d.reason._asdict(), "text": str(d.reason)} for d in map(self._at, group)]
                for group in cause.groups
            ],
            "confidence": cause.confidence,
            "bad_alone": cause.is_sufficient,
            "good_without": cause.is_necessary,
            "differences": [str(d.reason) for d in self.differences],
            "not_separable": list(map(str, self.inseparable)),
            "states": {
                "tested": len(self.steps),
                "restored": sum(not step.built for step in self.steps),
                "built": sum(step.built > 0 for step in self.steps),
            },
            "steps": [step._asdict() for step in self.steps],
        }

    def _at(self, number: int) -> Difference:
        return self.differences[number]
