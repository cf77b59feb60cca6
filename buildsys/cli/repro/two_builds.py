"""Build the same targets twice, in clean folders that differ in all that must not matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import buildsys
from buildsys.cli.repro.project_copy import copy_project
from buildsys.errors import StageError
from buildsys.manifest.project import STATE_FOLDER, Project
from buildsys.store.locks import machine_lock_folder

_BUILD = "build"
_ENDING_S = 10.0  # how long a build that is ended may take to end its workers


@dataclass(frozen=True)
class Conditions:
    """What one of the two builds has to itself."""

    name: str
    folder: str  # of other lengths and depths: a path in a file moves all that comes behind it
    hash_seed: str


CONDITIONS = (
    Conditions("first build", "a/project", "1"),
    Conditions("second build", "the-second-of-two/deeper/checkout", "4242"),
)


@dataclass(frozen=True)
class Built:
    """One of the two builds: where it lies, and what became of each target (the ``ended`` events)."""

    conditions: Conditions
    root: Path
    seconds: float
    targets: Mapping[str, Mapping[str, Any]]

    @property
    def build(self) -> Path:
        """Return its build folder."""
        return self.root / _BUILD

    def failed(self) -> dict[str, str]:
        """Return the targets that did not end well, with the reason."""
        ended = (
            (target, end)
            for target, end in self.targets.items()
            if end["status"] in ("failed", "not run")
        )
        return {target: str(end["reason"]) for target, end in ended}


Say = Callable[[str], None]


def build_twice(
    project: Project, targets: Sequence[str], folder: Path, say: Say
) -> Iterator[Built]:
    """Copy the project and build ``targets``, twice, one after the other, below ``folder``.

    Raises: StageError: a copy cannot be made, or a build ended without an answer.
    """
    for conditions in CONDITIONS:
        root = folder / conditions.folder
        copy_project(project.root, root, without=(project.build, project.state, folder))
        (root.parent / "tmp").mkdir()
        began = time.monotonic()
        ended = _build(conditions, root, _environment(project, root, conditions), targets, say)
        yield Built(conditions, root, time.monotonic() - began, ended)


def child_environment() -> dict[str, str]:
    """Return this process's environment in which ``-m buildsys…`` is found from any folder."""
    package = str(Path(buildsys.__file__).resolve().parent.parent)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", "")))),
    }


def _environment(project: Project, root: Path, conditions: Conditions) -> dict[str, str]:
    configs, inside = project.configs, project.configs.is_relative_to(project.root)
    return {
        **child_environment(),
        "BUILDSYS_BUILD": _BUILD,
        "BUILDSYS_CONFIGS": str(configs.relative_to(project.root) if inside else configs),
        "BUILDSYS_MACHINE_LOCK": str(
            machine_lock_folder(project.state / "locks")
        ),  # of all builds of this user
        "BUILDSYS_STORE": str(
            root / STATE_FOLDER / "store"
        ),  # else the second build could be a copy of the first
        "BUILDSYS_REMOTE": "",  # the same
        "BUILDSYS_WORKER_IDLE": "0",  # no server of another build
        "PYTHONHASHSEED": conditions.hash_seed,
        "TMPDIR": str(root.parent / "tmp"),
    }


def _build(
    conditions: Conditions,
    root: Path,
    environment: Mapping[str, str],
    targets: Sequence[str],
    say: Say,
) -> dict[str, Mapping[str, Any]]:
    ended: dict[str, Mapping[str, Any]] = {}
    command = [sys.executable, "-m", "buildsys.cli.repro.clean_build", str(root), *targets]
    with _running(command, environment, cwd=root.parent / "tmp") as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            target = event["target"]
            where = f"{conditions.name}, {len(ended) + 1} of {len(targets)}: {target}"
            if event["event"] == "started":
                say(f"{where} …")
            elif event["event"] == "ended":
                ended[target] = event
                took = f", {event['seconds']:.1f} s" if "seconds" in event else ""
                say(
                    f"{where} {event['status']}{took}"
                    + (f": {event['reason']}" if event["reason"] else "")
                )
    missing = [target for target in targets if target not in ended]
    if missing:
        raise StageError(
            f"the {conditions.name} ended at {missing[0]} with exit code {process.returncode}"
        )
    return ended


@contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path
) -> Iterator[subprocess.Popen[str]]:
    """Run a process that is ended, with its workers, when the block is left early."""
    process = subprocess.Popen(
        command, env=dict(environment), cwd=cwd, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
        process.wait()
    finally:
        if process.poll() is None:
            _end(process)
        if process.stdout:
            process.stdout.close()


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)  # it ends its workers first
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
