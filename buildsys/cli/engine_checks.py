"""Built engines by name: may they be deployed, do they run here, and which one runs.

A process of the interpreter that would load an engine checks it, as a library may crash.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.cli.command import print_json, print_lines, typed_path, unknown_name
from buildsys.cli.session import BuildSession
from buildsys.deploy.can_run import check_signature
from buildsys.errors import UsageError
from buildsys.execution.freshness import FRESH
from buildsys.execution.stale_reasons import FAILED, summarize_reasons
from buildsys.plan.action import Action
from buildsys.project.load import empty_project
from buildsys.report.formatting import first_names
from buildsys.stages.table import ENGINE, ENGINE_STAGES, GATE, REPORT, stage_info, target_of
from buildsys.store.ledger import UNAVAILABLE
from buildsys.store.signatures import ACCEPT, WARN
from buildsys.system.backend_registry import Reason
from buildsys.system.processes import run_python
from buildsys.system.signatures import UNSIGNED, UNTRUSTED, TrustedKeys, key_name
from buildsys.system.toolchains import Toolchain, locate_toolchain

SCHEMA = "buildsys/doctor/1"
_NOT_USABLE = 1
_LIMIT_S = 120
STALE, CHECK = "stale", "check"  # kinds of reasons that only the project knows
NAMED, RECOMMENDED, FIRST = "named", "recommended", "first"  # why an engine is chosen
_MOST_REASONS = 2
_MOST_ENGINES = 12


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
    """List the engines of a name. Raises: UsageError: there is none."""
    if engines := engines_of(session, session.targets_of(name)):
        return engines
    names = [
        f"{model}:{engine['name']}"
        for model, spec in session.project.models.items()
        for engine in spec.data["engines"]
    ]
    listed = f"engines: {first_names(names, _MOST_ENGINES) or 'none yet'}"
    raise unknown_name("engine", name, [*session.project.models, *names], listed)


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
) -> Iterator[Reason]:
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
        yield Reason(STALE, problem, f"buildsys build {engine.target}")
    for name in checks:
        check, remedy = states[name], f"buildsys build {name}"
        if check.state != FRESH:
            why = summarize_reasons(check.reasons, _MOST_REASONS)
            has_failed = any(cause.kind == FAILED for cause in check.reasons)
            state = "has not passed" if has_failed else "has not run on the current files"
            yield Reason(CHECK, f"{name} {state}: {why}", remedy)
            continue
        # a gate has no baseline before the second build; validate cannot run operators that
        # only a plugin computes, and verify has compared the engine
        action = session.actions[name]
        operators = action.options.get("operators", ())
        may_miss = action.stage == GATE or any(entry["kind"] is None for entry in operators)
        if check.last is not None and check.last.status == UNAVAILABLE and not may_miss:
            yield Reason(CHECK, f"{name} could not run here: {check.last.reason}", remedy)
        if check.noise is not None:
            problem = f"{name} has not passed, it was noisy: {check.noise}"
            yield Reason(CHECK, problem, f"buildsys build --remeasure {engine.model}")


def choose_engine(session: BuildSession, engines: Sequence[Action]) -> tuple[Action, str]:
    """Choose the engine of a model to run; return it and the reason.

    Raises: UsageError: none is up to date and verified.
    """
    model, several, problems = engines[0].model, len(engines) > 1, []
    preferred = _recommended(session, model) if several else ""
    for engine in sorted(engines, key=lambda engine: engine.variant != preferred):
        # a gate decides on deployment, not on the outputs
        reason = next(project_reasons(session, engine, with_gate=False), None)
        if not (session.project.build / engine.outputs["engine"].path).is_file():
            problems.append(f"{engine.variant}: not built")
        elif reason is not None:
            problems.append(f"{engine.variant}: {reason.problem}")
        else:
            best = RECOMMENDED if engine.variant == preferred else FIRST
            return engine, best if several else NAMED
    problem = f"no engine of {model} can run ({'; '.join(problems)})"
    raise UsageError(problem, f"`buildsys build {model}` builds and verifies them")


def _recommended(session: BuildSession, model: str) -> str:
    """Find the engine recommended by an up-to-date report, or ""."""
    target = target_of(REPORT, model)
    if session.explain([target])[target].state != FRESH:
        return ""
    recommendation = session.result(target).get("recommendation")
    return str(recommendation.get("engine") or "") if isinstance(recommendation, dict) else ""


def check_engines(
    root: Path,
    names: Sequence[str],
    trusted: Sequence[str] = (),
    revoked: Sequence[str] = (),
    *,
    as_json: bool,
) -> int:
    """Print the state of engines; return 0 if all are usable.

    A name is a file, a folder, or a target name: the engines of its targets are checked. A file or
    folder that an engine of this project is built into stands for its target. With ``trusted``
    keys, one of them must have signed each engine; ``revoked`` ones never count.

    Raises: UsageError: a name is none of these, or a key no public key.
    """
    checker = EngineChecker(root, trusted, revoked)
    answers = [checker.check(engine) for name in names for engine in checker.find(name)]
    if as_json:
        print_json({"schema": SCHEMA, "engines": answers})
    else:
        print_lines("\n\n".join("\n".join(_lines(answer)) for answer in answers).split("\n"))
    usable = all(answer["runs"] and answer["current"] is not False for answer in answers)
    return 0 if usable else _NOT_USABLE


class NamedEngine(NamedTuple):
    """An engine to check."""

    name: str  # as typed, or its target
    path: Path
    toolchain: Toolchain | None = None
    action: Action | None = None  # if it belongs to this project

    @property
    def is_built(self) -> bool:
        """True if its folder exists."""
        return self.path.parent.is_dir()


class EngineChecker:
    """Checks of engines, loading the project only for its own engines.

    An engine must be signed by a trusted key if ``trusted`` has some, or if the project does not
    own it and has trusted keys; the records of its own engines say who built them.
    """

    def __init__(
        self, root: Path, trusted: Sequence[str] = (), revoked: Sequence[str] = ()
    ) -> None:
        self._root = root
        self._must_be_signed = bool(trusted)
        self._policy = empty_project(root).signing()
        revoked = [*self._policy.revoked, *revoked]
        try:
            self._keys = TrustedKeys.of(trusted or self._policy.trusted, revoked)
        except ValueError as error:
            hint = "`buildsys cache keygen FILE` prints public keys, ed25519: and 44 characters"
            raise UsageError(str(error), hint) from None
        if revoked and not self._keys.trusted:
            problem = "revoked keys have no effect without trusted ones"
            raise UsageError(problem, "add --trusted-key")

    @cached_property
    def _session(self) -> BuildSession:
        return BuildSession.read_only(self._root)

    def find(self, name: str) -> list[NamedEngine]:
        """Find the engines of a name."""
        typed = typed_path(name)
        if not typed.exists() and os.sep not in name and (":" in name or "." not in name):
            return [self._of_action(engine) for engine in named_engines(self._session, name)]
        path = typed.resolve()
        build = empty_project(self._root).build.resolve()
        if build in path.parents:
            own = (a for a in self._session.actions.values() if a.stage == ENGINE)
            for engine in map(self._of_action, own):
                if path in (engine.path.resolve(), engine.path.parent.resolve()):
                    return [engine._replace(name=name)]
            self._session.refuse_broken(path.relative_to(build).parts[0])
        return [NamedEngine(name, typed)]

    def _of_action(self, action: Action) -> NamedEngine:
        project, toolchain = self._session.project, None
        if action.toolchain:
            toolchain = locate_toolchain(*action.toolchain, project.root, os.environ)
        path = project.build / action.outputs["engine"].path
        return NamedEngine(action.target, path, toolchain, action)

    def check(self, engine: NamedEngine) -> dict[str, Any]:
        """Check whether an engine can run here, and is current."""
        signer, problems, note = self._signature(engine)
        if problems:  # nothing may load its library
            answer = _refusal(engine, problems)
        else:
            answer = _check_in_process(engine, self._root)
            answer |= {"signed_by": signer} if signer else {}
            answer["notes"] = [*answer["notes"], *([note] if note else [])]
        reasons: list[dict[str, str]] = []
        if engine.action is not None and engine.is_built:
            own = project_reasons(self._session, engine.action)
            reasons = [asdict(reason) for reason in own]
        current = None if engine.action is None else not reasons and engine.path.is_file()
        return {**answer, "current": current, "reasons": [*answer["reasons"], *reasons]}

    def _signature(self, engine: NamedEngine) -> tuple[str, tuple[Reason, ...], str]:
        """Return the signer of an engine, the reasons against it, and a note."""
        own_rules = engine.action is None and self._keys.trusted and self._policy.unsigned != ACCEPT
        if not (self._must_be_signed or own_rules) or not engine.is_built:
            return "", (), ""
        signer, problems = check_signature(engine.path, self._keys)
        is_tolerated = self._policy.unsigned == WARN and not self._must_be_signed
        if is_tolerated and problems and problems[0].kind in (UNSIGNED, UNTRUSTED):
            return "", (), problems[0].problem
        return signer, problems, ""


def _check_in_process(engine: NamedEngine, root: Path) -> dict[str, Any]:
    """Check an engine in its own interpreter."""
    if engine.action is not None and not engine.is_built:
        problem = f"{engine.name} has not been built"
        return _refusal(engine, [Reason("file", problem, f"buildsys build {engine.name}")])
    toolchain, path = engine.toolchain, str(engine.path.absolute())
    python = str(toolchain.python) if toolchain else sys.executable
    try:
        done = run_python(
            ("-m", "buildsys.doctor", path, "--json", f"--project={root}"),
            python=python,
            environment=toolchain.environment(os.environ) if toolchain else None,
            limit_s=_LIMIT_S,
        )
        answer: dict[str, Any] = json.loads(done.stdout)  # of several lines
    except OSError as error:
        return _refusal(engine, [Reason("library", f"cannot start {python}: {error}", "")])
    except ValueError:
        problem = f"{python} gives no answer about the engine: {done.problem}"
        return _refusal(engine, [Reason("library", problem, "reinstall its library")])
    if toolchain:
        for reason in answer["reasons"]:
            reason["remedy"] = reason["remedy"].replace("pip install", toolchain.pip)
    return {**answer, "engine": engine.name}


def _refusal(engine: NamedEngine, reasons: Iterable[Reason]) -> dict[str, Any]:
    facts = {"schema": SCHEMA, "engine": engine.name, "built": "", "runs": False}
    return {**facts, "reasons": [asdict(reason) for reason in reasons], "notes": []}


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of ``can_run``, then what the project knows."""
    ours = [reason for reason in answer["reasons"] if reason["kind"] in (STALE, CHECK)]
    others = [reason for reason in answer["reasons"] if reason["kind"] not in (STALE, CHECK)]
    yield f"{answer['engine']}: {answer['built']}".removesuffix(": ")
    signed = f", and is signed by {key_name(answer['signed_by'])}" if "signed_by" in answer else ""
    yield f"it can run here{signed}" if answer["runs"] else "it cannot run here:"
    yield from (f"  - {reason['problem']}; {reason['remedy']}".rstrip("; ") for reason in others)
    if answer["current"]:
        yield "it matches its manifest and has passed its checks"
    if ours:
        yield "it does not match its manifest, or has not passed its checks:"
    yield from (f"  - {reason['problem']}; {reason['remedy']}" for reason in ours)
    yield from (f"  note: {note}" for note in answer["notes"])
