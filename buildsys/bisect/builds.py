"""Builds of states up to the figure of one engine, and comparisons of their figures."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.bisect.differences import State, errors_of, model_of
from buildsys.bisect.search import BAD, GOOD, UNRESOLVED, Answer
from buildsys.errors import BuildsysError, CheckFailed, ManifestErrors, StageError, UsageError
from buildsys.execution.executor import Executor
from buildsys.execution.key_parts import builder_versions
from buildsys.execution.local_runs import hold_devices, stage_job
from buildsys.history.builds import build_figures
from buildsys.manifest.schema.engines import GatesSpec
from buildsys.plan.action import RESULT, Action
from buildsys.project.plan import ProjectPlan
from buildsys.report.formatting import change, size
from buildsys.report.formatting import error as error_text
from buildsys.stages.table import ENGINE, EVALUATE, GATE, VERIFY, target_of
from buildsys.store.ledger import FAILED, PASSED

LATENCY = "latency"
FIGURES = {  # stage, and the name in its figures
    LATENCY: (GATE, ""), "error": (VERIFY, "relative"), "size": (ENGINE, "bytes"),
    "accuracy": (EVALUATE, "value"),
}  # fmt: skip
_SWAP = "swap --good and --bad, or name other builds"
_EQUAL = 1e-9  # relative difference of figures


@dataclass
class StateBuild:
    """A state as far as it was built."""

    state: State
    folder: Path
    actions: Mapping[str, Action]
    parts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    value: float | None = None  # not of latencies, which are compared
    more_is_better: bool = False
    restored: int = 0
    built: int = 0
    problem: str = ""  # why it has no figure


class Verdict(NamedTuple):
    """A state compared with good and bad."""

    answer: Answer
    build: StateBuild
    text: str


class StateBuilder:
    """Builds states in private folders, with the project's store and workers.

    ``executor_of`` makes an executor of actions, a private folder and a project.
    """

    def __init__(
        self,
        own: Executor,
        executor_of: Callable[..., Executor],
        engine: str,
        figure: str,
        folder: Path,
    ) -> None:
        self._own, self._executor_of = own, executor_of
        self._engine, self._figure, self._folder = engine, figure, folder
        self._harmless: set[tuple[object, str]] = set()

    def plan(self, state: State) -> dict[str, Action]:
        """Plan the figure and what it needs, in order.

        Raises: ManifestErrors: its fields do not fit together. UsageError: there is no such figure.
        """
        errors = errors_of(state, self._folder)
        if state.is_own:
            self._harmless |= errors.keys()
        elif wrong := [error for name, error in errors.items() if name not in self._harmless]:
            raise ManifestErrors(tuple(wrong))
        manifest = dict(state.manifest)
        if self._figure == LATENCY:
            gates = GatesSpec.model_validate({LATENCY: {"tolerance": 1.0}}).model_dump()
            manifest["engines"] = [
                {**engine, "gates": gates} if engine["name"] == self._engine else engine
                for engine in manifest["engines"]
            ]
        model = model_of(state._replace(manifest=manifest))
        plan = ProjectPlan({model.name: model}, builder_versions(state.project.root))
        actions = plan.of(model.name)
        last = target_of(FIGURES[self._figure][0], model.name, self._engine)
        if last not in actions:
            hint = "add `evaluate` to it" if self._figure == "accuracy" else "name another build"
            raise UsageError(f"the manifest of {model.name} plans no {last}", hint)
        needed, waiting = {last}, [*actions[last].after]
        while waiting:
            target = waiting.pop()
            needed.add(target)
            waiting += {*actions[target].after, *actions[target].order} - needed
        return {target: action for target, action in actions.items() if target in needed}

    def build(self, state: State, name: str = "work") -> StateBuild:
        """Build a state up to its figure in a folder of this name."""
        build = StateBuild(state, self._folder / name, {})
        try:
            build.actions = self.plan(state)
        except BuildsysError as error:
            build.problem = str(error)
            return build
        *_, last = build.actions
        actions = {**build.actions}
        if self._figure == LATENCY:
            del actions[last]  # measured by ``compare``
        executor = self._executor_of(actions, build.folder, state.project)
        try:
            with self._project(last, exclusive=False):
                for target in actions:
                    self._run(executor, target, build, is_last=target == last)
                    key = executor.examine(target).key
                    build.parts[target] = {} if key is None else key.parts
            if self._figure != LATENCY:
                self._read(build, actions[last])
        except (BuildsysError, OSError, ValueError) as error:
            build.problem = str(error) or type(error).__name__
        finally:
            executor.close()
        return build

    def _run(self, executor: Executor, target: str, build: StateBuild, *, is_last: bool) -> None:
        try:
            outcome = executor.run(target)
        except CheckFailed:
            build.built += 1
            if not is_last:  # a failed check of the figure has one, too
                raise
            return
        except BuildsysError:
            build.built += 1
            raise
        build.restored += outcome.restored or outcome.waited
        build.built += not (outcome.restored or outcome.waited)
        if outcome.status != PASSED:
            raise StageError(f"{target} is {outcome.status}: {outcome.reason}", outcome.hint)

    def _project(self, target: str, *, exclusive: bool) -> AbstractContextManager[None]:
        locks = self._own.here.locks
        return locks.project(f"bisect {target}", exclusive=exclusive, on_wait=_report_wait)

    def _read(self, build: StateBuild, action: Action) -> None:
        stage, name = FIGURES[self._figure]
        file = build.folder / "build" / action.outputs[RESULT].path
        result = json.loads(file.read_text(encoding="utf-8"))
        value = build_figures(stage, result)[name]
        build.value = math.inf if value is None else float(value)
        build.more_is_better = bool(result.get("higher_is_better"))

    def compare_latencies(self, good: StateBuild, other: StateBuild, tolerance: float) -> Any:
        """Let a gate measure both engines in turns; return its check."""
        *_, last = other.actions
        action, baseline = other.actions[last], good.actions[[*good.actions][-1]]
        options = {
            **action.options,
            "gates": {LATENCY: {"tolerance": tolerance, "limit": None}},
            "baseline": {"name": "the good build", "engine": baseline.options["engine"]},
        }
        folder, project = other.folder, other.state.project
        outputs = {RESULT: folder / "gate" / "gate.json"}
        outputs[RESULT].parent.mkdir(exist_ok=True)
        outputs[RESULT].unlink(missing_ok=True)
        changed = replace(action, options=options, baseline=None)
        places = project.root, folder / "build", outputs
        with hold_devices(self._own.here.locks, action, f"bisect {last}", _report_wait) as held:
            job = stage_job(changed, *places, code=project.code)
            earlier = {
                f"baseline.{role}": path
                for role, ref in baseline.inputs.items()
                if role.startswith("engine") and (path := good.folder / "build" / ref.path).exists()
            }
            job = replace(job, inputs={**job.inputs, **earlier}, **held)
            reply = self._own.here.pool.run(job, log=folder / "gate.log")
        checks = json.loads(outputs[RESULT].read_text(encoding="utf-8")).get("checks")
        if not checks:
            raise StageError(reply.reason, reply.hint)
        return checks[0]


def _text(check: Mapping[str, Any]) -> str:
    ends = (change(end) for end in (check["low"], check["high"]) if end is not None)
    return f"latency {change(check['change'])}, interval {' to '.join(ends)}"


def _one_sided(check: Mapping[str, Any]) -> float:
    confidence: float = (1 + check["confidence"]) / 2
    return confidence


def _report_wait(holder: str) -> None:
    sys.stderr.write(f"waiting for {holder or 'other targets'}\n")


@dataclass
class Judge:
    """Decides whether a state is good or bad, by the middle between both figures."""

    builder: StateBuilder
    figure: str
    good: StateBuild
    limit: float = 0.0  # of the figure, or the tolerance of the gate
    change: float | None = None  # of latencies from good to bad

    def calibrate(self, bad: StateBuild) -> Answer:
        """Set the limit. Raises: CheckFailed: the bad build is not worse."""
        if self.figure == LATENCY:
            check = self.builder.compare_latencies(self.good, bad, 0.0)
            if check["status"] != FAILED:
                raise CheckFailed(f"the bad build is not clearly slower: {check['text']}", _SWAP)
            self.change = check["change"]
            self.limit = math.sqrt(1 + check["change"]) - 1
            return Answer(BAD, _one_sided(check))
        before, after = self.good.value, bad.value
        assert before is not None
        assert after is not None
        sign = -1 if self.good.more_is_better else 1
        if not sign * after > sign * before + _EQUAL * abs(before):
            text = f"the bad build is not worse: {self.show(self.good)} → {self.show(bad)}"
            raise CheckFailed(text, _SWAP)
        is_scale = 0 < before < math.inf and 0 < after < math.inf
        middle = math.sqrt(before * after) if is_scale else (before + after) / 2
        self.limit = middle if math.isfinite(middle) else sys.float_info.max
        return Answer(BAD)

    def judge(self, build: StateBuild) -> Verdict:
        """Compare a build with the limit."""
        if build.problem:
            return Verdict(Answer(UNRESOLVED), build, build.problem)
        if self.figure == LATENCY:
            try:
                check = self.builder.compare_latencies(self.good, build, self.limit)
            except (BuildsysError, OSError) as error:
                return Verdict(Answer(UNRESOLVED), build, str(error))
            verdict = {FAILED: BAD, PASSED: GOOD}.get(check["status"])
            if verdict is None:  # noisy
                return Verdict(Answer(UNRESOLVED), build, check["text"])
            return Verdict(Answer(verdict, _one_sided(check)), build, _text(check))
        value = build.value
        assert value is not None
        is_bad = value < self.limit if build.more_is_better else value > self.limit
        return Verdict(Answer(BAD if is_bad else GOOD), build, self.show(build))

    def show(self, build: StateBuild) -> str:
        """Write the figure of a build."""
        if build.value is None:
            is_worse = self.change is not None and build is not self.good
            return f"latency {change(self.change or 0)}" if is_worse else LATENCY
        shown: Callable[[float], str] = {"error": error_text, "size": size}.get(
            self.figure, "{:.4g}".format
        )
        return f"{self.figure} {shown(build.value)}"
