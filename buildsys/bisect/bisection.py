"""Bisection between two states of a project: first over commits, then over their differences."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from buildsys.bisect.builds import UNBUILDABLE, Judge, State, StateBuild, StateBuilder
from buildsys.bisect.differences import (
    Difference,
    Parts,
    environment_differences,
    field_differences,
    file_differences,
    mix_files,
    with_fields,
)
from buildsys.bisect.libraries import library_differences, mix_pins, recorded_pins
from buildsys.bisect.search import GOOD, Answer, Cause, CauseSearch, find_boundary
from buildsys.errors import BuildsysError, CheckFailed, UsageError
from buildsys.execution.stale_reasons import StaleReason


class Point(NamedTuple):
    """A state of the project with its name."""

    name: str
    commit: str  # "" for uncommitted changes
    revision: str  # the last commit in it
    open: Callable[[], State]  # may take a checkout
    recorded: Parts | None = None  # libraries and devices of a recorded build


class Step(NamedTuple):
    """One test; ``restored`` and ``built`` count targets."""

    state: str
    verdict: str
    confidence: float
    text: str
    restored: int
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
    between: tuple[Point, ...] = ()  # neighbouring commits, or the ends
    skipped: int = 0  # commits without a verdict between them

    def run(self, good: Point, bad: Point, commits: Sequence[Point], cheap: set[str]) -> Cause:
        """Find the cause; ``commits`` lie between both, oldest first.

        ``cheap`` names commits that were built before and are probably restored.
        Raises: CheckFailed: the builds do not differ.
        UsageError: the good or the bad build does not have the figure.
        """
        first, last = self._end(good, "good"), self._end(bad, "bad")
        differing = environment_differences(
            good.recorded or first.parts, bad.recorded or last.parts
        )
        libraries = {reason.subject for reason in differing if reason.kind == "tool"}
        first = self._with_libraries(first, good, libraries, "good")
        last = self._with_libraries(last, bad, libraries, "bad")
        pinned = {pin.name for pin in first.state.pins | last.state.pins}
        self.inseparable = [r for r in differing if r.kind != "tool" or r.subject not in pinned]
        judge = Judge(self.builder, self.figure, first)
        try:
            whole, text = judge.calibrate(last)
        except CheckFailed as error:
            if self.inseparable:
                error.hint = "what differs cannot be changed here: "
                error.hint += ", ".join(map(str, self.inseparable))
            raise
        self._add(good.name, first, *judge.judge(first))
        self._add(bad.name, last, whole, text)
        points = [good, *commits, bad]
        builds = {0: first, len(points) - 1: last}

        def ask(place: int) -> str:
            point = points[place]
            try:
                builds[place] = self.builder.build(point.open())
            except BuildsysError as error:  # no such model, or a broken manifest
                builds[place] = StateBuild(first.state, self.backup, problem=str(error))
            return self._add(point.name, builds[place], *judge.judge(builds[place])).verdict

        last_good, first_bad = find_boundary(
            len(points) - 1, ask, lambda place: points[place].commit in cheap
        )
        self.between = points[last_good], points[first_bad]
        self.skipped = first_bad - last_good - 1
        return self._search(judge, builds[last_good], builds[first_bad], whole)

    def _end(self, point: Point, name: str) -> StateBuild:
        build = self.builder.build(point.open(), name)
        if build.problem:
            problem = f"{point.name} has no {self.figure}: {build.problem}"
            raise UsageError(problem, "name another build")
        return build

    def _with_libraries(
        self, build: StateBuild, point: Point, names: Collection[str], name: str
    ) -> StateBuild:
        """Build an end again with the libraries that it was recorded with."""
        pins = recorded_pins(build.actions, point.recorded or {}, build.parts, names)
        pins = self.builder.environments.available(pins, build.state.model.data)
        state = build.state._replace(pins=pins)
        return self._end(point._replace(open=lambda: state), name) if pins else build

    def _add(self, state: str, build: StateBuild, answer: Answer, text: str) -> Answer:
        self.steps.append(Step(state, *answer, text, build.restored, build.built))
        self.report(self.steps[-1])
        return answer

    def _search(self, judge: Judge, good: StateBuild, bad: StateBuild, whole: Answer) -> Cause:
        """Search among the fields, libraries and files in which two builds differ."""
        roots = good.state.project.root, bad.state.project.root
        manifests = [dict(build.state.model.data) for build in (good, bad)]
        toolchains = [manifest.get("toolchains", {}) for manifest in manifests]
        for build, manifest, others in zip((good, bad), manifests, toolchains[::-1], strict=True):
            # a mixture of both builds may name a toolchain of either
            manifest["toolchains"] = {**others, **manifest.get("toolchains", {})}
            build.state = build.state.with_manifest(manifest)
        files = file_differences(good.parts, bad.parts, roots)
        fields = field_differences(*manifests)
        pins = good.state.pins, bad.state.pins
        self.differences = [
            *(field for field in fields if self._has_effect(field, good, bad)),
            *library_differences(*pins),
            *files,
        ]
        if not self.differences:
            hint = "the figure is not reproducible, or the cause is not in the key"
            raise CheckFailed("no field, library or file of the key differs", hint)
        is_swapped = roots[0] == self.own_root  # which is not to be changed
        base, other = (bad, good) if is_swapped else (good, bad)
        if files and roots[0] == roots[1]:
            raise UsageError("files differ, and no commit has them", "name a commit")
        names = {each.file for each in files}
        tree, other_tree = (build.state.project.root for build in (base, other))
        mix_files(names, (), tree, tree, self.backup)

        def test(numbers: Sequence[int]) -> Answer:
            chosen = [self.differences[number] for number in numbers]
            changed = {each.file for each in chosen if each.file}
            others = names - changed if is_swapped else changed
            mix_files(names, others, self.backup, other_tree, tree)
            manifest = with_fields(manifests[0], [each for each in chosen if each.path])
            mixed = mix_pins(*pins, {each.library for each in chosen})
            build = self.builder.build(base.state.with_manifest(manifest)._replace(pins=mixed))
            name = f"{len(chosen)} of {len(self.differences)} differences"
            return self._add(name, build, *judge.judge(build))

        return CauseSearch(len(self.differences), test).run(Answer(GOOD), whole)

    def _has_effect(self, changed: Difference, good: StateBuild, bad: StateBuild) -> bool:
        """Check whether a field alone changes an action of the chain."""
        kind, subject, old, new = changed.reason
        back = Difference(StaleReason(kind, subject, new, old), changed.path)
        for build, difference in ((good, changed), (bad, back)):
            manifest = with_fields(build.state.model.data, [difference])
            try:
                plan = self.builder.plan(build.state.with_manifest(manifest))
            except UNBUILDABLE:
                return True
            if plan != build.actions:
                return True
        return False
