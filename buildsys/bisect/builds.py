"""Builds of states up to the figure of one engine, and verdicts on them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.bisect.libraries import Environments, Pin
from buildsys.bisect.search import BAD, GOOD, UNRESOLVED, Answer
from buildsys.errors import BuildsysError, CheckFailed, StageError, UsageError
from buildsys.execution.executor import Executor
from buildsys.execution.key_parts import builder_versions
from buildsys.execution.local_runs import hold_devices, report_wait, stage_job
from buildsys.history.builds import build_figures
from buildsys.manifest.schema.engines import GatesSpec
from buildsys.plan.action import RESULT, Action
from buildsys.project.load import Project, ResolvedModel
from buildsys.project.plan import ProjectPlan
from buildsys.report.formatting import change, error, size
from buildsys.stages.table import ENGINE, EVALUATE, GATE, VERIFY, target_of
from buildsys.store.ledger import FAILED, PASSED
from buildsys.system.toolchains import this_interpreter

LATENCY = "latency"
FIGURES = {  # stage, name in its figures, and how to write it
    LATENCY: (GATE, "", change), "error": (VERIFY, "relative", error),
    "size": (ENGINE, "bytes", size), "accuracy": (EVALUATE, "value", "{:.4g}".format),
}  # fmt: skip
_EQUAL = 1e-9  # relative difference of figures
# mixtures of manifests are not checked as a whole: a plan or a stage may not expect them
UNBUILDABLE = (BuildsysError, OSError, ValueError, LookupError, TypeError)
_SWAP = "swap --good and --bad, or name other builds"


class State(NamedTuple):
    """A tree of files with the resolved manifest of one model, and versions of libraries."""

    project: Project  # at the root of the tree
    model: ResolvedModel
    pins: frozenset[Pin] = frozenset()  # libraries in other versions than here

    def with_manifest(self, manifest: Mapping[str, Any]) -> State:
        """Replace the manifest."""
        return self._replace(model=replace(self.model, text=json.dumps(manifest)))


@dataclass
class StateBuild:
    """A state as far as it was built."""

    state: State
    folder: Path
    actions: Mapping[str, Action] = field(default_factory=dict)  # the last one has the figure
    parts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    value: float | None = None  # None for a latency, which is only compared
    more_is_better: bool = False
    restored: int = 0  # targets
    built: int = 0
    problem: str = ""  # the reason for a missing figure


class StateBuilder:
    """Builds states in private folders, with the project's caches and workers."""

    def __init__(self, own: Executor, root: Path, engine: str, figure: str, folder: Path) -> None:
        # builds of mixtures are of no use to other machines
        remote = own.remote and own.remote.read_only()
        self._here, self._of_trial = own.here, partial(own.of_trial, remote=remote)
        self._engine, self._figure, self._folder = engine, figure, folder
        self.environments = Environments(root, folder / "libraries")

    def plan(self, state: State) -> dict[str, Action]:
        """Plan the figure and what it needs, in order. Raises: UsageError: there is none."""
        name, own = state.model.name, self._engine
        manifest = self.environments.manifest(state.model.data, own, state.pins)
        if self._figure == LATENCY:
            gates = GatesSpec.model_validate({LATENCY: {"tolerance": 1.0}}).model_dump()
            engines = [
                {**engine, "gates": gates} if engine["name"] == own else engine
                for engine in manifest["engines"]
            ]
            manifest = {**manifest, "engines": engines}
        planned = {name: state.with_manifest(manifest).model}
        plan = ProjectPlan(planned, builder_versions(state.project.root)).of(name)
        last = target_of(FIGURES[self._figure][0], name, own)
        if last not in plan:
            hint = "add `evaluate` to it" if self._figure == "accuracy" else "name another build"
            raise UsageError(f"the manifest of {name} plans no {last}", hint)
        needed, waiting = {last}, [*plan[last].after]
        while waiting:
            target = waiting.pop()
            needed.add(target)
            waiting += {*plan[target].after, *plan[target].order} - needed
        return {
            target: self.environments.action(action, manifest, state.pins)
            for target, action in plan.items()
            if target in needed
        }

    def build(self, state: State, name: str = "work") -> StateBuild:
        """Build a state up to its figure in a folder of this name."""
        build, project = StateBuild(state, self._folder / name), state.project
        try:
            build.actions = self.plan(state)
        except UNBUILDABLE as problem:
            build.problem = str(problem)
            return build
        *needed, last = build.actions
        targets = needed if self._figure == LATENCY else [*needed, last]
        executor = self._of_trial(
            build.actions, build.folder, project=project.root, code=project.code
        )
        try:
            with self._here.locks.project(f"bisect {last}", exclusive=False, on_wait=report_wait):
                for target in targets:
                    self._run(executor, target, build, may_fail=target == last)
                    key = executor.examine(target).key
                    build.parts[target] = {} if key is None else key.parts
            if last in targets:
                stage, figure, _ = FIGURES[self._figure]
                file = build.folder / "build" / build.actions[last].outputs[RESULT].path
                result = json.loads(file.read_text(encoding="utf-8"))
                value = build_figures(stage, result)[figure]
                build.value = math.inf if value is None else float(value)
                build.more_is_better = bool(result.get("higher_is_better"))
        except UNBUILDABLE as problem:
            build.problem = str(problem) or type(problem).__name__
        finally:
            executor.close()
        return build

    def _run(self, executor: Executor, target: str, build: StateBuild, *, may_fail: bool) -> None:
        build.built += 1
        try:
            outcome = executor.run(target)
        except CheckFailed:
            if may_fail:  # it has the figure
                return
            raise
        if outcome.restored or outcome.waited:
            build.built, build.restored = build.built - 1, build.restored + 1
        if outcome.status != PASSED:
            raise StageError(f"{target} is {outcome.status}: {outcome.reason}", outcome.hint)

    def compare_latencies(
        self, good: StateBuild, other: StateBuild, tolerance: float
    ) -> Mapping[str, Any]:
        """Let a gate measure both engines in turns; return its check."""
        (*_, action), (*_, baseline) = other.actions.values(), good.actions.values()
        gates = {LATENCY: {"tolerance": tolerance, "limit": None}}
        folder, project = other.folder, other.state.project
        result, name = folder / "gate.json", f"bisect {action.target}"
        result.unlink(missing_ok=True)
        measured = replace(action, options={**action.options, "gates": gates})
        with hold_devices(self._here.locks, action, name) as held:
            places = project.root, folder / "build", {RESULT: result}
            job = stage_job(measured, *places, code=project.code)
            before = stage_job(baseline, project.root, good.folder / "build", {})
            earlier = {
                f"baseline.{role}": path
                for role, path in before.inputs.items()
                if role.startswith("engine")
            }
            toolchain = before.toolchain or this_interpreter()
            facts = {"description": "the good build", "options": baseline.options["engine"]}
            facts["toolchain"] = asdict(toolchain)
            job = replace(job, inputs={**job.inputs, **earlier}, baseline=facts, **held)
            reply = self._here.pool.run(job, log=folder / "gate.log")
        content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if "checks" not in content:
            raise StageError(reply.reason, reply.hint)
        (check,) = content["checks"]
        return {**check, "one_sided": (1 + (check["confidence"] or 0.0)) / 2}


@dataclass
class Judge:
    """Decides whether a state is good or bad, by the middle between both figures."""

    builder: StateBuilder
    figure: str
    good: StateBuild
    limit: float = 0.0  # between both figures; for a latency, the gate's tolerance

    def calibrate(self, bad: StateBuild) -> tuple[Answer, str]:
        """Set the limit. Raises: CheckFailed: the bad build is not worse."""
        if self.figure == LATENCY:
            check = self.builder.compare_latencies(self.good, bad, 0.0)
            if check["status"] != FAILED:
                raise CheckFailed(f"the bad build is not clearly slower: {check['text']}", _SWAP)
            self.limit = math.sqrt(1 + check["change"]) - 1
            return Answer(BAD, check["one_sided"]), self._show(check["change"])
        before, after = self.good.value or 0.0, bad.value or 0.0
        worse = before - after if self.good.more_is_better else after - before
        if not worse > _EQUAL * abs(before):
            both = " → ".join(map(self._show, (before, after)))
            raise CheckFailed(f"the bad build is not worse: {both}", _SWAP)
        is_scale = 0 < before < math.inf and 0 < after < math.inf
        middle = math.sqrt(before * after) if is_scale else (before + after) / 2
        self.limit = middle if math.isfinite(middle) else sys.float_info.max
        return Answer(BAD), self._show(after)

    def judge(self, build: StateBuild) -> tuple[Answer, str]:
        """Compare a build with the limit; return the verdict and its reason."""
        if build.problem:
            return Answer(UNRESOLVED), build.problem
        if (value := build.value) is not None:
            is_bad = value < self.limit if build.more_is_better else value > self.limit
            return Answer(BAD if is_bad else GOOD), self._show(value)
        if build is self.good:
            return Answer(GOOD), LATENCY
        try:
            check = self.builder.compare_latencies(self.good, build, self.limit)
        except UNBUILDABLE as problem:
            return Answer(UNRESOLVED), str(problem)
        verdict = {FAILED: BAD, PASSED: GOOD}.get(check["status"])
        if verdict is None:  # noisy
            return Answer(UNRESOLVED), check["text"]
        ends = [change(check[end]) for end in ("low", "high") if check[end] is not None]
        text = f"{self._show(check['change'])}, interval {' to '.join(ends)}"
        return Answer(verdict, check["one_sided"]), text

    def _show(self, value: float) -> str:
        return f"{self.figure} {FIGURES[self.figure][2](value)}"
