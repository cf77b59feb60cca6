"""``doit doctor ENGINE``: whether engines can run here, told by a process of the interpreter that would load them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.errors import StageError, UsageError
from buildsys.front.commands import nearest
from buildsys.graph.plan import plan_model
from buildsys.interpreter import Toolchain, interpreter_environment, located
from buildsys.manifest.project import Project, load_project
from buildsys.worker.death import how_it_ended

SCHEMA = "buildsys/doctor/1"
_CANNOT = 1
_TIMEOUT_S = 120


class _Engine(NamedTuple):
    """An engine that was asked for; ``shown`` is what the user typed."""

    shown: str
    path: Path
    toolchain: Toolchain | None = None
    is_target: bool = False


def examine(root: Path, names: Sequence[str], *, as_json: bool) -> tuple[str, int]:
    """Return what there is to say of engines, and 0 where all can run, else 1.

    A name is a file, a folder, or a target: ``engine:MODEL:NAME`` or ``MODEL:NAME``.
    Raises: UsageError: it is none of these. ManifestErrors: the manifests are wrong. StageError: nobody answers.
    """
    engines = _engines(root, names)
    verdicts = [_ask(engine, root) for engine in engines]
    code = 0 if all(verdict["runs"] for verdict in verdicts) else _CANNOT
    if as_json:
        return json.dumps({"schema": SCHEMA, "engines": verdicts}, indent=2) + "\n", code
    return "\n".join(_text(verdict) for verdict in verdicts), code


def _engines(root: Path, names: Sequence[str]) -> list[_Engine]:
    project: Project | None = None
    found = []
    for name in names:
        if Path(name).exists() or os.sep in name or ":" not in name:
            if not Path(name).exists() and os.sep not in name and "." not in name:
                raise _unknown(name, load_project(root))
            found.append(_Engine(name, Path(name)))
            continue
        project = project or load_project(root)
        found.append(_of_target(name, project))
    return found


def _of_target(name: str, project: Project) -> _Engine:
    model, _, variant = name.removeprefix("engine:").rpartition(":")
    resolved = project.models.get(model)
    actions = plan_model(resolved.data) if resolved else ()
    for action in actions:
        if action.stage == "engine" and action.variant == variant:
            toolchain = located(*action.toolchain, project.root, os.environ) if action.toolchain else None
            return _Engine(action.target, project.build / action.outputs["engine"].path, toolchain, True)
    raise _unknown(name, project)


def _unknown(name: str, project: Project) -> UsageError:
    known = [f"{model}:{engine['name']}" for model, found in project.models.items() for engine in found.data["engines"]]
    near = nearest(name.removeprefix("engine:"), known)
    hint = f"nearest: {', '.join(near)}" if near else f"engines: {', '.join(known[:12]) or 'none yet'}"
    return UsageError(f"there is no engine file and no engine {name!r}", hint)


def _ask(engine: _Engine, root: Path) -> dict[str, Any]:
    """Return the verdict of the interpreter that the engine is for: loading its library may end that process."""
    if engine.is_target and not engine.path.parent.is_dir():
        return _refused(engine, f"{engine.shown} has not been built", f"doit {engine.shown}", kind="file")
    python = str(engine.toolchain.python) if engine.toolchain else sys.executable
    command = [python, "-m", "buildsys.doctor", str(engine.path.absolute()), "--json", f"--project={root}"]
    try:
        done = subprocess.run(
            command, env=_environment(engine.toolchain), cwd=tempfile.gettempdir(),
            capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip
    except OSError as error:
        told = f"the interpreter {python} of its toolchain cannot be started: {error.strerror}"
        return _refused(engine, told, "correct toolchains in configs/project.yaml")
    except subprocess.TimeoutExpired as error:
        raise StageError(f"{python} has not answered for {_TIMEOUT_S} s about {engine.shown}") from error
    try:
        verdict: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        told = done.stderr.strip().rpartition("\n")[2]
        how = how_it_ended(done.returncode) + (f": {told}" if told else "")
        return _refused(engine, f"the process of {python} that loads its library {how}", "reinstall that library")
    if engine.toolchain:
        for reason in verdict["reasons"]:
            reason["remedy"] = reason["remedy"].replace("pip install", engine.toolchain.pip)
    return {**verdict, "engine": engine.shown}


def _environment(toolchain: Toolchain | None) -> dict[str, str]:
    base = interpreter_environment(toolchain, os.environ) if toolchain else dict(os.environ)
    package = str(Path(__file__).resolve().parents[2])
    return {**base, "PYTHONPATH": os.pathsep.join(filter(None, (package, base.get("PYTHONPATH", ""))))}


def _refused(engine: _Engine, problem: str, remedy: str, kind: str = "library") -> dict[str, Any]:
    reason = {"kind": kind, "problem": problem, "remedy": remedy}
    return {"schema": SCHEMA, "engine": engine.shown, "built": "", "runs": False, "reasons": [reason], "notes": []}


def _text(verdict: Mapping[str, Any]) -> str:
    built = f": {verdict['built']}" if verdict["built"] else ""
    lines = [f"{verdict['engine']}{built}", "it can run here" if verdict["runs"] else "it cannot run here:"]
    lines += [f"  - {reason['problem']}; {reason['remedy']}".rstrip("; ") for reason in verdict["reasons"]]
    lines += [f"  note: {note}" for note in verdict["notes"]]
    return "\n".join(lines) + "\n"
