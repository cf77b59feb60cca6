"""``doit doctor ENGINE``: whether engines can run here, and whether they are what the manifests ask for now.

The first is told by a process of the interpreter that would load them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.cli.doctor.engine_status import KINDS, Reason, shortfalls
from buildsys.cli.session import Session
from buildsys.cli.targets import open_project
from buildsys.errors import StageError, UsageError
from buildsys.manifest.project import Project, empty_project
from buildsys.plan.action import Action
from buildsys.system.interpreters.toolchain import Toolchain, locate_toolchain
from buildsys.system.processes import describe_exit
from buildsys.system.suggestions import nearest

SCHEMA = "buildsys/doctor/1"
_CANNOT = 1
_TIMEOUT_S = 120


class _Engine(NamedTuple):
    """An engine that was asked for; ``shown`` is what the user typed, or the target that it is."""

    shown: str
    path: Path
    toolchain: Toolchain | None = None
    action: Action | None = None  # of an engine of this project


def examine(root: Path, names: Sequence[str], *, as_json: bool) -> tuple[str, int]:
    """Return what there is to say of engines; 0 where all can run and those of the project are current, else 1.

    A name is a file, a folder, or a target: ``engine:MODEL:NAME`` or ``MODEL:NAME``. A file or folder that an
    engine of this project is built into stands for its target.
    Raises: UsageError: it is none of these. ManifestErrors: the manifests are wrong. StageError: nobody answers.
    """
    asking = _Asking(root)
    verdicts = [asking.verdict(asking.engine(name)) for name in names]
    code = (
        0
        if all(verdict["runs"] and verdict["current"] is not False for verdict in verdicts)
        else _CANNOT
    )
    if as_json:
        return json.dumps({"schema": SCHEMA, "engines": verdicts}, indent=2) + "\n", code
    return "\n".join(_text(verdict) for verdict in verdicts), code


class _Asking:
    """One command on a project, which is loaded when the first of its engines is asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @cached_property
    def _session(self) -> Session:
        return open_project(self._root)

    def engine(self, name: str) -> _Engine:
        """Return what a name stands for."""
        if not (Path(name).exists() or os.sep in name or ":" not in name):
            return self._of_target(name)
        if not Path(name).exists() and os.sep not in name and "." not in name:
            raise _unknown(name, self._session.project)
        return self._of_file(name)

    def verdict(self, engine: _Engine) -> dict[str, Any]:
        """Return whether an engine can run here; of one of the project also whether it is what is asked for now."""
        verdict = _ask(engine, self._root)
        short: list[Reason] = []
        if engine.action is not None and engine.path.parent.is_dir():
            short = shortfalls(self._session, engine.action)
        current = None if engine.action is None else not short and engine.path.is_file()
        return {**verdict, "current": current, "reasons": [*verdict["reasons"], *short]}

    def _of_target(self, name: str) -> _Engine:
        model, _, variant = name.removeprefix("engine:").rpartition(":")
        action = self._session.actions.of(model).get(f"engine:{model}:{variant}")
        if action is None:
            raise _unknown(name, self._session.project)
        return self._of_action(action)

    def _of_file(self, name: str) -> _Engine:
        path = Path(name).resolve()
        if not path.is_relative_to(empty_project(self._root).build.resolve()):
            return _Engine(name, Path(name))
        for action in self._session.actions.values():
            if action.stage == "engine":
                found = self._of_action(action)
                if path in (found.path.resolve(), found.path.parent.resolve()):
                    return found._replace(shown=name)
        return _Engine(name, Path(name))

    def _of_action(self, action: Action) -> _Engine:
        project = self._session.project
        toolchain = (
            locate_toolchain(*action.toolchain, project.root, os.environ)
            if action.toolchain
            else None
        )
        return _Engine(
            action.target, project.build / action.outputs["engine"].path, toolchain, action
        )


def _unknown(name: str, project: Project) -> UsageError:
    known = [
        f"{model}:{engine['name']}"
        for model, found in project.models.items()
        for engine in found.data["engines"]
    ]
    near = nearest(name.removeprefix("engine:"), known)
    hint = (
        f"nearest: {', '.join(near)}" if near else f"engines: {', '.join(known[:12]) or 'none yet'}"
    )
    return UsageError(f"there is no engine file and no engine {name!r}", hint)


def _ask(engine: _Engine, root: Path) -> dict[str, Any]:
    """Return the verdict of the interpreter that the engine is for: loading its library may end that process."""
    if engine.action is not None and not engine.path.parent.is_dir():
        return _refused(
            engine, f"{engine.shown} has not been built", f"doit {engine.shown}", kind="file"
        )
    python = str(engine.toolchain.python) if engine.toolchain else sys.executable
    command = [
        python,
        "-m",
        "buildsys.doctor",
        str(engine.path.absolute()),
        "--json",
        f"--project={root}",
    ]
    try:
        done = subprocess.run(
            command, env=_environment(engine.toolchain), cwd=tempfile.gettempdir(),
            capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip
    except OSError as error:
        told = f"the interpreter {python} of its toolchain cannot be started: {error.strerror}"
        return _refused(engine, told, "correct toolchains in configs/project.yaml")
    except subprocess.TimeoutExpired as error:
        raise StageError(
            f"{python} has not answered for {_TIMEOUT_S} s about {engine.shown}"
        ) from error
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        told = done.stderr.strip().rpartition("\n")[2]
        how = describe_exit(done.returncode) + (f": {told}" if told else "")
        return _refused(
            engine,
            f"the process of {python} that loads its library {how}",
            "reinstall that library",
        )
    if engine.toolchain:
        for reason in verdict["reasons"]:
            reason["remedy"] = reason["remedy"].replace("pip install", engine.toolchain.pip)
    return {**verdict, "engine": engine.shown}


def _environment(toolchain: Toolchain | None) -> dict[str, str]:
    base = toolchain.environment(os.environ) if toolchain else dict(os.environ)
    package = str(Path(__file__).resolve().parents[3])
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(filter(None, (package, base.get("PYTHONPATH", "")))),
    }


def _refused(engine: _Engine, problem: str, remedy: str, kind: str = "library") -> dict[str, Any]:
    reason = {"kind": kind, "problem": problem, "remedy": remedy}
    return {
        "schema": SCHEMA,
        "engine": engine.shown,
        "built": "",
        "runs": False,
        "reasons": [reason],
        "notes": [],
    }


def _text(verdict: Mapping[str, Any]) -> str:
    built = f": {verdict['built']}" if verdict["built"] else ""
    lines = [
        f"{verdict['engine']}{built}",
        "it can run here" if verdict["runs"] else "it cannot run here:",
    ]
    lines += _listed(reason for reason in verdict["reasons"] if reason["kind"] not in KINDS)
    short = [reason for reason in verdict["reasons"] if reason["kind"] in KINDS]
    if verdict["current"]:
        lines.append("it is what the manifest asks for now, and has passed its checks")
    lines += ["it is not what the manifest asks for now, or has not passed its checks:"] * bool(
        short
    )
    lines += _listed(short)
    lines += [f"  note: {note}" for note in verdict["notes"]]
    return "\n".join(lines) + "\n"


def _listed(reasons: Iterable[Mapping[str, str]]) -> list[str]:
    return [f"  - {reason['problem']}; {reason['remedy']}".rstrip("; ") for reason in reasons]
