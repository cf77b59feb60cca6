"""buildsys doctor ENGINE: checks of built engines.

A process of the interpreter that would load an engine checks the former, as a library may crash.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.cli.command import print_json, print_lines
from buildsys.cli.model_filter import ModelFilter
from buildsys.cli.project_root import typed_path
from buildsys.cli.session import Session
from buildsys.deploy.can_run import check_signature
from buildsys.errors import StageError, UsageError
from buildsys.execution.freshness import FRESH
from buildsys.execution.stale_reasons import FAILED, summarize_reasons
from buildsys.plan.action import Action
from buildsys.project.load import empty_project
from buildsys.stages.table import ENGINE, ENGINE_STAGES, GATE, stage_info, target_of
from buildsys.store.ledger import UNAVAILABLE
from buildsys.store.signatures import ACCEPT, WARN, SigningKey
from buildsys.system.backend_registry import Reason as Damage
from buildsys.system.interpreters.toolchain import Toolchain, locate_toolchain
from buildsys.system.processes import describe_exit, run_python
from buildsys.system.signatures import UNSIGNED, UNTRUSTED, TrustedKeys, key_name
from buildsys.system.suggestions import nearest

SCHEMA = "buildsys/doctor/1"
STALE, CHECK = "stale", "check"  # kinds of reasons that only the project knows
_NOT_USABLE = 1
_LIMIT_S = 120
_SHOWN_REASONS = 2
_SHOWN_ENGINES = 12
Reason = dict[str, str]  # kind, problem, remedy


def check_engines(
    root: Path,
    names: Sequence[str],
    only: ModelFilter,
    *,
    trusted: Sequence[str] = (),
    revoked: Sequence[str] = (),
    as_json: bool,
) -> int:
    """Print the state of engines; return 0 if all are usable.

    A name is a file, a folder, or a target name: the engines of its targets are checked. A file or
    folder that an engine of this project is built into stands for its target. With ``trusted``
    keys, one of them must have signed each engine; ``revoked`` ones never count.

    Raises: UsageError: a name is none of these, or a key no public key. ManifestErrors: the
    manifests are wrong. StageError: an interpreter does not answer.
    """
    checker = _EngineChecker(root, trusted, revoked)
    names = checker.matching(names, only) if only else names
    answers = [checker.check(engine) for name in names for engine in checker.find(name)]
    if as_json:
        print_json({"schema": SCHEMA, "engines": answers})
    else:
        for at, answer in enumerate(answers):
            print_lines(([""] if at else []) + _lines(answer))
    usable = all(answer["runs"] and answer["current"] is not False for answer in answers)
    return 0 if usable else _NOT_USABLE


class _NamedEngine(NamedTuple):
    shown: str  # as typed, or its target
    path: Path
    toolchain: Toolchain | None = None
    action: Action | None = None  # if it belongs to this project


class _EngineChecker:
    """Checks of engines, loading the project only for its own engines."""

    def __init__(
        self, root: Path, trusted: Sequence[str] = (), revoked: Sequence[str] = ()
    ) -> None:
        self._root = root
        self._must_be_signed = bool(trusted)
        self._policy = empty_project(root).signing()
        try:
            never = [*self._policy.revoked, *revoked]
            self._keys = TrustedKeys.of(trusted or self._policy.trusted, never)
        except ValueError as error:
            hint = "`buildsys cache keygen FILE` prints public keys, ed25519: and 44 characters"
            raise UsageError(str(error), hint) from None
        if never and not self._keys.trusted:
            raise UsageError(
                "revoked keys have no effect without trusted ones", "add --trusted-key"
            )
        if not trusted and self._policy.key is not None:  # own results need no other key
            with suppress(StageError):
                own = SigningKey(self._policy.key).public_key
                self._keys = replace(self._keys, trusted=self._keys.trusted | {own})

    @cached_property
    def _session(self) -> Session:
        return Session.read_only(self._root)

    def matching(self, names: Sequence[str], only: ModelFilter) -> list[str]:
        """List the engine targets of names and of matching models.

        Raises: UsageError: there are none.
        """
        session = self._session
        chosen = (
            session.actions[action] for action in session.select(names or [ENGINE], only=only)
        )
        named = (action for action in chosen if action.stage in ENGINE_STAGES)
        targets = session.in_order(
            {target_of(ENGINE, action.model, action.variant) for action in named}
        )
        if not targets:
            raise UsageError(
                f"no engine of {' '.join(names)} has {only}",
                "choose another --tag or --owner, or leave it out",
            )
        return targets

    def find(self, name: str) -> list[_NamedEngine]:
        """Find the engines of a name."""
        typed = typed_path(name)
        if not typed.exists() and os.sep not in name and (":" in name or "." not in name):
            actions = self._session.actions
            named = (actions[target] for target in self._session.targets_of(name))
            named = (chosen for chosen in named if chosen.stage in ENGINE_STAGES)
            targets = dict.fromkeys(
                target_of(ENGINE, chosen.model, chosen.variant) for chosen in named
            )
            engines = [self._of_action(actions[target]) for target in targets if target in actions]
            if engines:
                return engines
            names = [
                f"{model}:{engine['name']}"
                for model, targets in self._session.project.models.items()
                for engine in targets.data["engines"]
            ]
            near = nearest(name.removeprefix(f"{ENGINE}:"), names)
            listed = ", ".join(names[:_SHOWN_ENGINES]) or "none yet"
            hint = f"nearest: {', '.join(near)}" if near else f"engines: {listed}"
            raise UsageError(f"there is no engine file and no engine {name!r}", hint)
        path = typed.resolve()
        if path.is_relative_to(empty_project(self._root).build.resolve()):
            for action in self._session.actions.values():
                if action.stage == ENGINE:
                    engine = self._of_action(action)
                    if path in (engine.path.resolve(), engine.path.parent.resolve()):
                        return [engine._replace(shown=name)]
        return [_NamedEngine(name, typed)]

    def _of_action(self, action: Action) -> _NamedEngine:
        project, toolchain = self._session.project, None
        if action.toolchain:
            toolchain = locate_toolchain(*action.toolchain, project.root, os.environ)
        path = project.build / action.outputs["engine"].path
        return _NamedEngine(action.target, path, toolchain, action)

    def _signature(self, engine: _NamedEngine) -> tuple[str, tuple[Damage, ...], str]:
        """Return the signer of an engine, the reasons against it, and a note.

        Without ``--trusted-key``, engines that this project built need no signature, and
        ``unsigned`` of the project says how others are treated.
        """
        configured = bool(self._policy.trusted) and self._policy.unsigned != ACCEPT
        if not (self._must_be_signed or configured) or not engine.path.parent.is_dir():
            return "", (), ""
        signer, problems = check_signature(engine.path, self._keys)
        kind = problems[0].kind if problems else ""
        tolerated = {UNSIGNED, UNTRUSTED} if self._policy.unsigned == WARN else set()
        tolerated |= {UNSIGNED} if engine.action is not None else set()
        if kind in tolerated and not self._must_be_signed:
            return "", (), problems[0].problem
        if engine.action is not None:  # an engine is signed when it is built
            again = f"buildsys build -a -s {engine.action.target}"
            problems = tuple(replace(problem, remedy=again) for problem in problems)
        return signer, problems, ""

    def check(self, engine: _NamedEngine) -> dict[str, Any]:
        """Check whether an engine can run here, and is current."""
        signer, problems, note = self._signature(engine)
        if problems:  # nothing may load its library
            answer = _refusal(engine, [asdict(problem) for problem in problems])
        else:
            answer = _check_in_process(engine, self._root)
            answer |= {"signed_by": signer} if signer else {}
            answer["notes"] = [*answer["notes"], *([note] if note else [])]
        reasons: list[Reason] = []
        if engine.action is not None and engine.path.parent.is_dir():
            reasons = list(project_reasons(self._session, engine.action))
        current = None if engine.action is None else not reasons and engine.path.is_file()
        return {**answer, "current": current, "reasons": [*answer["reasons"], *reasons]}


def required_checks(session: Session, engine: Action) -> list[str]:
    """List the targets that must have passed for an engine to be deployed."""
    return [
        action.target
        for action in session.actions.of(engine.model).values()
        if stage_info(action.stage).is_required_check and action.variant in ("", engine.variant)
    ]


def _is_gate(target: str) -> bool:
    return target.startswith(f"{GATE}:")


def project_reasons(
    session: Session, engine: Action, *, with_gate: bool = True
) -> Iterator[Reason]:
    """Yield reasons against deploying an engine: stale, or without passed checks."""
    checks = [name for name in required_checks(session, engine) if with_gate or not _is_gate(name)]
    states = session.explain([engine.target, *checks])

    def reason(kind: str, problem: str, target: str) -> Reason:
        return {"kind": kind, "problem": problem, "remedy": f"buildsys build {target}"}

    explained = states[engine.target]
    if explained.state != FRESH:
        why = summarize_reasons(explained.reasons, _SHOWN_REASONS)
        yield reason(STALE, f"{engine.target} does not match its manifest: {why}", engine.target)
    for name in checks:
        check = states[name]
        why = summarize_reasons(check.reasons, _SHOWN_REASONS)
        if check.state == FRESH:
            # a gate has no baseline before the second build; validate cannot run operators that
            # only a plugin computes, and verify has compared the engine
            operators = session.actions[name].options.get("operators", ())
            is_accepted = _is_gate(name) or any(entry["kind"] is None for entry in operators)
            if check.last is not None and check.last.status == UNAVAILABLE and not is_accepted:
                yield reason(CHECK, f"{name} could not run here: {check.last.reason}", name)
            if check.noise is not None:
                yield {
                    "kind": CHECK,
                    "problem": f"{name} has not passed, it was noisy: {check.noise}",
                    "remedy": f"buildsys build --remeasure {engine.model}",
                }
        elif any(cause.kind == FAILED for cause in check.reasons):
            yield reason(CHECK, f"{name} has not passed: {why}", name)
        else:
            yield reason(CHECK, f"{name} has not run on the current files: {why}", name)


def _check_in_process(engine: _NamedEngine, root: Path) -> dict[str, Any]:
    """Check an engine in its own interpreter."""
    if engine.action is not None and not engine.path.parent.is_dir():
        return _refused(
            engine, f"{engine.shown} has not been built", f"buildsys build {engine.shown}", "file"
        )
    python = str(engine.toolchain.python) if engine.toolchain else sys.executable
    path = str(engine.path.absolute())
    try:
        done = run_python(
            ("-m", "buildsys.doctor", path, "--json", f"--project={root}"),
            python=python,
            environment=engine.toolchain.environment(os.environ) if engine.toolchain else None,
            limit_s=_LIMIT_S,
        )
    except OSError as error:
        problem = f"cannot start {python}, the interpreter of its toolchain: {error.strerror}"
        return _refused(engine, problem, "correct toolchains in configs/project.yaml")
    if done.code is None:
        problem = f"{python} has not answered for {_LIMIT_S} s about {engine.shown}"
        raise StageError(problem, "run it again when this machine is idle")
    try:
        answer: dict[str, Any] = done.json()
    except ValueError:
        how, last = describe_exit(done.code), done.stderr.strip().rpartition("\n")[2]
        problem = f"{python} {how} while it loaded the library{f': {last}' if last else ''}"
        return _refused(engine, problem, "reinstall that library")
    if engine.toolchain:
        for reason in answer["reasons"]:
            reason["remedy"] = reason["remedy"].replace("pip install", engine.toolchain.pip)
    return {**answer, "engine": engine.shown}


def _refused(
    engine: _NamedEngine, problem: str, remedy: str, kind: str = "library"
) -> dict[str, Any]:
    return _refusal(engine, [{"kind": kind, "problem": problem, "remedy": remedy}])


def _refusal(engine: _NamedEngine, reasons: Sequence[Reason]) -> dict[str, Any]:
    facts = {"schema": SCHEMA, "engine": engine.shown, "built": "", "runs": False}
    return {**facts, "reasons": list(reasons), "notes": []}


def _lines(answer: Mapping[str, Any]) -> list[str]:
    ours = [reason for reason in answer["reasons"] if reason["kind"] in (STALE, CHECK)]
    others = [reason for reason in answer["reasons"] if reason["kind"] not in (STALE, CHECK)]
    lines = [f"{answer['engine']}: {answer['built']}".removesuffix(": ")]
    signed = f", and is signed by {key_name(answer['signed_by'])}" if "signed_by" in answer else ""
    lines += [f"it can run here{signed}" if answer["runs"] else "it cannot run here:"]
    lines += _listed(others)
    if answer["current"]:
        lines.append("it matches its manifest and has passed its checks")
    if ours:
        lines.append("it does not match its manifest, or has not passed its checks:")
    return [*lines, *_listed(ours), *(f"  note: {note}" for note in answer["notes"])]


def _listed(reasons: Iterable[Mapping[str, str]]) -> list[str]:
    return [f"  - {reason['problem']}; {reason['remedy']}".rstrip("; ") for reason in reasons]
