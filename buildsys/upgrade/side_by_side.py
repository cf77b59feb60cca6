"""Stages that get the builds of both sides.

A gate measures both engines in turns, each in fresh processes of its own interpreter. A check
compares the new engine with the old golden outputs: the new library may have computed the new ones.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from buildsys.execution.key_parts import builder_versions
from buildsys.execution.local_runs import hold_devices, stage_job
from buildsys.plan.action import RESULT, Action
from buildsys.project.load import Project
from buildsys.project.plan import plan_model
from buildsys.stages.table import GATE, target_of
from buildsys.store.locks import Locks
from buildsys.system.files import sha256_of
from buildsys.system.toolchains import Toolchain, locate_toolchain
from buildsys.upgrade.sides import Side
from buildsys.upgrade.verdicts import needs_more_rounds
from buildsys.workers.job import Job
from buildsys.workers.pool import WorkerPool

MEMORY_TOLERANCE = 0.1
_MORE_ROUNDS = 100  # narrow intervals to two thirds of a gate's
_GOLDEN = ("case.", "samples", "sizes")  # roles of golden inputs and outputs, or their beginning


class SideBySide:
    """Stages of a project between an old and a new side."""

    def __init__(self, project: Project, pool: WorkerPool, old: Side, new: Side) -> None:
        """Prepare stages, with their results in the folder of the pool."""
        self._project, self._pool, self._old, self._new = project, pool, old, new
        self._locks = Locks(project.state / "locks")

    def measure(
        self, model: str, engine: str, tolerance: float, duration_s: float
    ) -> dict[str, Mapping[str, Any]]:
        """Compare latency and memory; return a gate's checks by metric.

        Raises: StageError: an engine cannot be measured.
        """
        pace = {"tolerance": tolerance, "duration_s": duration_s}
        checks = self._measure(self._gate(model, engine, rounds=None, **pace))
        if needs_more_rounds(checks, tolerance):  # without the first ones, which chose this look
            checks = self._measure(self._gate(model, engine, rounds=_MORE_ROUNDS, **pace))
        return checks

    def _measure(self, action: Action) -> dict[str, Mapping[str, Any]]:
        job, before = self._jobs(action)
        baseline = {
            "description": f"the build with {self._old.title}",
            "options": action.options["engine"],
            "toolchain": asdict(self._toolchain(action, self._old)),
        }
        inputs = {**job.inputs, **{f"baseline.{n}": path for n, path in before.inputs.items()}}
        checks = self._run(action, replace(job, baseline=baseline, inputs=inputs)).get("checks")
        return {check["metric"]: check for check in checks or ()}

    def verify(self, action: Action) -> dict[str, Any] | None:
        """Compare a new engine with the old golden outputs, None if they are equal.

        Raises: StageError: it cannot be checked.
        """
        job, before = self._jobs(action)
        golden = {n: path for n, path in before.inputs.items() if n.startswith(_GOLDEN)}
        pairs = [(path, job.inputs.get(name)) for name, path in golden.items()]
        if all(new and sha256_of(old) == sha256_of(new) for old, new in pairs):
            return None
        others = {n: path for n, path in job.inputs.items() if not n.startswith(_GOLDEN)}
        return self._run(action, replace(job, inputs={**others, **golden}))

    def _jobs(self, action: Action) -> tuple[Job, Job]:
        """Make the new side's job, in its interpreter, and the old one's."""
        root, code = self._project.root, self._project.code
        outputs = {RESULT: self._pool.state / f"{action.target.replace(':', '-')}.json"}
        new, old = (
            stage_job(action, root, side.build, outputs, code=code)
            for side in (self._new, self._old)
        )
        return replace(new, toolchain=self._toolchain(action, self._new)), old

    def _run(self, action: Action, job: Job) -> dict[str, Any]:
        result = job.outputs[RESULT]
        with hold_devices(self._locks, action, action.target) as held:
            log = result.with_suffix(".log")
            self._pool.run(replace(job, **held), log=log, timeout_s=action.timeout_s)
        content: dict[str, Any] = json.loads(result.read_bytes())
        return content

    def _gate(
        self, model: str, engine: str, *, rounds: int | None, tolerance: float, duration_s: float
    ) -> Action:
        """Plan the gate of an engine, whatever its manifest says."""
        data = self._project.models[model].data
        limits = {"latency": tolerance, "memory": MEMORY_TOLERANCE}
        gates = {
            **{name: {"tolerance": share, "limit": None} for name, share in limits.items()},
            **{"engine": None, "rounds": rounds, "duration": duration_s, "required": False},
        }
        engines = [{**entry, "gates": None} for entry in data["engines"]]
        spec = {**data, "gates": gates, "engines": engines}
        plan = plan_model(spec, builder_versions(self._project.root))
        target = target_of(GATE, model, engine)
        return next(action for action in plan if action.target == target)

    def _toolchain(self, action: Action, side: Side) -> Toolchain:
        """Find the interpreter that runs an engine on one side."""
        if action.toolchain is None:
            return Toolchain(side.title, side.python, {})
        variables = {**os.environ, **side.variables}
        return locate_toolchain(*action.toolchain, self._project.root, variables)
