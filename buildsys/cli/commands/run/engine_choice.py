"""Choice of an up-to-date and verified engine for `buildsys run`."""

from __future__ import annotations

from collections.abc import Sequence

from buildsys.cli.command import unknown_name
from buildsys.cli.commands.doctor.engines import project_reasons
from buildsys.cli.session import Session
from buildsys.errors import UsageError
from buildsys.execution.freshness import FRESH
from buildsys.plan.action import Action
from buildsys.project.plan import model_of
from buildsys.report.formatting import first_names
from buildsys.stages.table import ENGINE, ENGINE_STAGES, REPORT, VALIDATE, VERIFY, target_of
from buildsys.store.ledger import UNAVAILABLE

NAMED, RECOMMENDED, FIRST = "named", "recommended", "first"  # why an engine is chosen
_SHOWN_ENGINES = 12
_UNAVAILABLE = "unavailable here"


def named_engines(session: Session, name: str) -> list[Action]:
    """List the engines of a name.

    Raises: UsageError: it names none, or those of several models.
    """
    actions, targets = session.actions, session.targets_of(name)
    models = dict.fromkeys(map(model_of, targets))
    chosen = [actions[target] for target in targets if actions[target].stage in ENGINE_STAGES]
    variants = dict.fromkeys(target_of(ENGINE, action.model, action.variant) for action in chosen)
    if len(models) == 1 and variants:
        return [actions[target] for target in variants]
    engines = [
        f"{model}:{engine['name']}"
        for model, spec in session.project.models.items()
        for engine in spec.data["engines"]
    ]
    listed = f"engines: {first_names(engines, _SHOWN_ENGINES) or 'none yet'}"
    if not targets:
        raise unknown_name("model or engine", name, [*session.project.models, *engines], listed)
    if len(models) > 1:
        raise UsageError(f"{name!r} names {len(models)} models", listed)
    if not session.project.models[next(iter(models))].data["engines"]:
        raise UsageError(f"{next(iter(models))} has no engines", "add `engines` to its manifest")
    raise UsageError(f"{name!r} is no engine", listed)


def choose_engine(session: Session, engines: Sequence[Action]) -> tuple[Action, str]:
    """Return the engine to run, and the reason.

    Raises: UsageError: none is up to date and verified.
    """
    model, several = engines[0].model, len(engines) > 1
    preferred = _recommended(session, model) if several else ""
    problems = {}
    for engine in sorted(engines, key=lambda engine: engine.variant != preferred):
        problem = _problem(session, engine)
        if problem is None:
            best = RECOMMENDED if engine.variant == preferred else FIRST
            return engine, best if several else NAMED
        problems[engine.variant] = problem
    first, problem = next(iter(problems.items()))
    name = f"{model}:{first}"
    if several:
        groups: dict[str, list[str]] = {}
        for engine_name, cause in problems.items():
            groups.setdefault(cause, []).append(engine_name)
        listed = "; ".join(f"{', '.join(names)}: {cause}" for cause, names in groups.items())
        problem = f"no engine of {model} can run ({listed})"
        raise UsageError(problem, f"`buildsys build {model}` builds and verifies them")
    if problem.startswith(_UNAVAILABLE):
        raise UsageError(f"{name} cannot run: {problem}", "or name another engine")
    command = f"buildsys build {VALIDATE}:{model} {VERIFY}:{name}"
    raise UsageError(f"{name} cannot run: {problem}", f"`{command}` builds and verifies it")


def _recommended(session: Session, model: str) -> str:
    """Find the engine recommended by an up-to-date report, or ""."""
    target = target_of(REPORT, model)
    if session.explain([target])[target].state != FRESH:
        return ""
    recommendation = session.result(target).get("recommendation")
    return str(recommendation.get("engine") or "") if isinstance(recommendation, dict) else ""


def _problem(session: Session, engine: Action) -> str | None:
    """Find the first reason against running an engine, None without any."""
    # a gate decides on deployment, not on the outputs
    reason = next(project_reasons(session, engine, with_gate=False), None)
    for target in (engine.target, target_of(VERIFY, engine.model, engine.variant)):
        unavailable = session.result(target).get("status") == UNAVAILABLE
        if unavailable and session.explain([target])[target].state == FRESH:
            return f"{_UNAVAILABLE}: {session.recorded_reason(target)}"
    if not (session.project.build / engine.outputs["engine"].path).is_file():
        return "not built"
    return None if reason is None else reason["problem"]
