"""Table of stages, and the targets of one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from buildsys.errors import UsageError
from buildsys.manifest.surgery_interface import AFTER_EXPORT, AFTER_SIMPLIFY
from buildsys.plan.action import Action
from buildsys.plan.engine_typing import VersionOf, unknown_version
from buildsys.plan.graph_points import Spec
from buildsys.plan.model_plan import EnginePlan, ModelPlan
from buildsys.stages.bench.plan import plan_bench
from buildsys.stages.calibrate.plan import plan_calibrate
from buildsys.stages.command.plan import plan_commands
from buildsys.stages.convert.plan import plan_convert
from buildsys.stages.engine.plan import plan_engine
from buildsys.stages.export.plan import plan_export
from buildsys.stages.gate.plan import plan_gate
from buildsys.stages.operators.plan import plan_operators
from buildsys.stages.program.plan import plan_program
from buildsys.stages.reference.plan import plan_reference
from buildsys.stages.report.plan import plan_report
from buildsys.stages.search.plan import plan_search
from buildsys.stages.simplify.plan import plan_simplify
from buildsys.stages.surgery.plan import plan_surgery
from buildsys.stages.validate.plan import plan_validate
from buildsys.stages.verify.plan import plan_verify

MODEL_STAGES = (
    plan_operators,
    plan_export,
    plan_program,
    plan_reference,
    partial(plan_surgery, when=AFTER_EXPORT),
    plan_simplify,
    partial(plan_surgery, when=AFTER_SIMPLIFY),
    plan_calibrate,
    plan_search,
    plan_convert,
    plan_validate,
)
DEFINITION_STAGES = (plan_operators, plan_reference)  # of a network without an ONNX graph
ENGINE_STAGES: tuple[Callable[[ModelPlan, EnginePlan], Action | None], ...] = (
    plan_engine,
    plan_verify,
    plan_bench,
    plan_gate,
)  # then plan_commands, and plan_report of all the others


def plan_model(spec: Spec, version_of: VersionOf = unknown_version) -> tuple[Action, ...]:
    """Return the actions of one model in the order of dependencies.

    ``version_of`` returns the TensorRT version that builds an engine, as it decides which graph
    the engine is built from.
    Raises: UsageError: an action needs what no action of the model makes.
    """
    model = ModelPlan(spec, version_of)
    stages: tuple[Callable[[ModelPlan], Iterator[Action]], ...] = ()
    if model.has_network:
        stages = DEFINITION_STAGES if model.definition else MODEL_STAGES
    actions = [action for plan in stages for action in plan(model)]
    planned = (plan(model, engine) for engine in model.engines for plan in ENGINE_STAGES)
    actions += [action for action in planned if action is not None]
    declared = {"reads": tuple(spec["reads"]), "strict_reads": spec["strict_reads"]}
    if any(declared.values()):  # stages with the user's code
        actions = [replace(each, **declared) if each.sources else each for each in actions]
    actions += plan_commands(model, {action.target: action for action in actions})
    actions.append(plan_report(model, actions))
    _check_inputs(actions)
    return tuple(actions)


def _check_inputs(actions: Sequence[Action]) -> None:
    """Check that every input and earlier target is planned. Raises: UsageError."""
    targets = {action.target for action in actions}
    written = {ref.path for action in actions for ref in action.outputs.values()}
    for action in actions:
        missing = [ref.path for ref in action.inputs.values() if ref.path not in written]
        missing += [name for name in (*action.after, *action.order) if name not in targets]
        if missing:
            problem = f"{action.target} needs {missing[0]}, which no target of its model makes"
            hint = f"`buildsys resolve {action.model}` shows the sections that ask for it"
            raise UsageError(problem, hint)
