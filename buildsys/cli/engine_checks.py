"""Built engines by name: may they be deployed, and which one runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from buildsys.cli.command import unknown_name
from buildsys.cli.session import BuildSession
from buildsys.errors import UsageError
from buildsys.execution.freshness import FRESH
from buildsys.execution.stale_reasons import FAILED, summarize_reasons
from buildsys.plan.action import Action
from buildsys.project.plan import model_of
from buildsys.report.formatting import first_names
from buildsys.stages.table import (
    ENGINE,
    ENGINE_STAGES,
    GATE,
    REPORT,
    VALIDATE,
    VERIFY,
    stage_info,
    target_of,
)
from buildsys.store.ledger import UNAVAILABLE

STALE, CHECK = "stale", "check"  # kinds of reasons that only the project knows
NAMED, RECOMMENDED, FIRST = "named", "recommended", "first"  # why an engine is chosen
_MOST_REASONS = 2
_MOST_ENGINES = 12
_UNAVAILABLE = "unavailable here"


class EngineReason(NamedTuple):
    """A reason against deploying an engine, and the command that removes it."""

    kind: str
    problem: str
    remedy: str


def engines_of(session: BuildSession, targets: Iterable[str]) -> list[Action]:
    """List the engines that targets belong to, in build order."""
    actions = [session.actions[target] for target in targets]
    engines = {
        target_of(ENGINE, action.model, action.variant)
        for action in actions
        if action.stage in ENGINE_STAGES
    }
    return [session.actions[target] for target in session.in_order(engines)]


def named_engines(session: BuildSession, name: str) -> list[Action]:
    """List the engines of a name. Raises: UsageError: it names none, or those of several models."""
    targets = session.targets_of(name)
    models = dict.fromkeys(map(model_of, targets))
    engines = engines_of(session, targets)
    if len(models) == 1 and engines:
        return engines
    names = engine_names(session)
    listed = f"engines: {first_names(names, _MOST_ENGINES) or 'none yet'}"
    if not targets:
        raise unknown_name("model or engine", name, [*session.project.models, *names], listed)
    raise UsageError(f"{name!r} is not the name of a model with engines, or of an engine", listed)


def engine_names(session: BuildSession) -> list[str]:
    """List all engines of the project as MODEL:ENGINE."""
    return [
        f"{model}:{engine['name']}"
        for model, spec in session.project.models.items()
        for engine in spec.data["engines"]
    ]


def one_engine(session: BuildSession, name: str) -> Action:
    """Find the only engine of a name. Raises: UsageError: there are several, or none."""
    engines = named_engines(session, name)
    if len(engines) > 1:
        listed = ", ".join(engine.variant for engine in engines)
        raise UsageError(f"{name} has several engines", f"name one of {listed}")
    return engines[0]


def required_checks(session: BuildSession, engine: Action) -> list[str]:
    """List the targets that must have passed for an engine to be deployed."""
    return [
        action.target
        for action in session.actions.of(engine.model).values()
        if stage_info(action.stage).is_required_check and action.variant in ("", engine.variant)
    ]


def project_reasons(
    session: BuildSession, engine: Action, *, with_gate: bool = True
) -> Iterator[EngineReason]:
    """Yield reasons against deploying an engine: stale, or without passed checks."""
    checks = [
        name
        for name in required_checks(session, engine)
        if with_gate or session.actions[name].stage != GATE
    ]
    states = session.explain([engine.target, *checks])
    explained = states[engine.target]
    if explained.state != FRESH:
        why = summarize_reasons(explained.reasons, _MOST_REASONS)
        problem = f"{engine.target} does not match its manifest: {why}"
        yield EngineReason(STALE, problem, f"buildsys build {engine.target}")
    for name in checks:
        check, remedy = states[name], f"buildsys build {name}"
        if check.state != FRESH:
            why = summarize_reasons(check.reasons, _MOST_REASONS)
            has_failed = any(cause.kind == FAILED for cause in check.reasons)
            state = "has not passed" if has_failed else "has not run on the current files"
            yield EngineReason(CHECK, f"{name} {state}: {why}", remedy)
            continue
        # a gate has no baseline before the second build; validate cannot run operators that
        # only a plugin computes, and verify has compared the engine
        action = session.actions[name]
        operators = action.options.get("operators", ())
        may_miss = action.stage == GATE or any(entry["kind"] is None for entry in operators)
        if check.last is not None and check.last.status == UNAVAILABLE and not may_miss:
            yield EngineReason(CHECK, f"{name} could not run here: {check.last.reason}", remedy)
        if check.noise is not None:
            problem = f"{name} has not passed, it was noisy: {check.noise}"
            yield EngineReason(CHECK, problem, f"buildsys build --remeasure {engine.model}")


def choose_engine(session: BuildSession, engines: Sequence[Action]) -> tuple[Action, str]:
    """Choose the engine to run; return it and the reason.

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
    if several:
        listed = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        problem = f"no engine of {model} can run ({listed})"
        raise UsageError(problem, f"`buildsys build {model}` builds and verifies them")
    ((variant, problem),) = problems.items()
    name = f"{model}:{variant}"
    if problem.startswith(_UNAVAILABLE):
        raise UsageError(f"{name} cannot run: {problem}", "or name another engine")
    command = f"buildsys build {VALIDATE}:{model} {VERIFY}:{name}"
    raise UsageError(f"{name} cannot run: {problem}", f"`{command}` builds and verifies it")


def _recommended(session: BuildSession, model: str) -> str:
    """Find the engine recommended by an up-to-date report, or ""."""
    target = target_of(REPORT, model)
    if session.explain([target])[target].state != FRESH:
        return ""
    recommendation = session.result(target).get("recommendation")
    return str(recommendation.get("engine") or "") if isinstance(recommendation, dict) else ""


def _problem(session: BuildSession, engine: Action) -> str | None:
    """Find the first reason against running an engine, None without any."""
    # a gate decides on deployment, not on the outputs
    reason = next(project_reasons(session, engine, with_gate=False), None)
    for target in (engine.target, target_of(VERIFY, engine.model, engine.variant)):
        unavailable = session.result(target).get("status") == UNAVAILABLE
        if unavailable and session.explain([target])[target].state == FRESH:
            return f"{_UNAVAILABLE}: {session.recorded_reason(target)}"
    if not (session.project.build / engine.outputs["engine"].path).is_file():
        return "not built"
    return None if reason is None else reason.problem
