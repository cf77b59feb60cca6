"""Two builds of the same targets, in clean folders under different conditions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.errors import StageError
from buildsys.manifest.project import STATE_FOLDER, Project
from buildsys.plan.action import Action
from buildsys.store.locks import machine_lock_folder
from buildsys.system.printable import printable_line
from buildsys.system.processes import package_environment

BUILD = "build"
_END_LIMIT_S = 10.0  # for a build to stop its workers
_COPIED_BYTES = 1 << 20  # larger files (weights, data) are linked: their place does not matter
_DEEPEST = 200  # folders; Python removes the copy recursively
_LEFT_OUT = {"__pycache__", "node_modules"}
_WORD_WIDTH = 13  # of the first column in plain output
_ENDS = {"done": "passed", "unavailable": "unavailable", "noisy": "noisy", "failed": "failed"}
_DOIT = (
    "import signal, sys; from buildsys.system.processes import die_with_parent; "
    "die_with_parent(int(sys.argv.pop(1)), signal.SIGTERM); "
    "from buildsys.cli.main import Main; sys.exit(Main().run(sys.argv[1:]))"
)


class Conditions(NamedTuple):
    """Conditions of a build without effect on its artifacts."""

    name: str
    folder: str  # of different length and depth: a path in a file shifts all that follows
    hash_seed: str


CONDITIONS = (
    Conditions("first build", "a/project", "1"),
    Conditions("second build", "the-second-of-two/deeper/checkout", "4242"),
)


@dataclass(frozen=True)
class Built:
    """One of the two builds and the ends of its targets."""

    conditions: Conditions
    root: Path
    seconds: float
    targets: Mapping[str, Mapping[str, str]]  # status (passed, unavailable, …) and reason

    def failed(self) -> dict[str, str]:
        """Return failed and skipped targets with their reasons."""
        bad = ("failed", "not run")
        return {name: end["reason"] for name, end in self.targets.items() if end["status"] in bad}

    def as_json(self, *, kept: bool) -> dict[str, Any]:
        """Return the build for the JSON output."""
        return {
            "seconds": round(self.seconds, 3),
            "hash_seed": self.conditions.hash_seed,
            "folder": str(self.root) if kept else None,
            "targets": {target: end["status"] for target, end in self.targets.items()},
        }


def report_progress(line: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"{printable_line(line)}\n")
    sys.stderr.flush()


def build_twice(
    project: Project, dodo: str, actions: Sequence[Action], folder: Path
) -> Iterator[Built]:
    """Copy the project below ``folder`` and build it with doit, twice.

    Raises: StageError: the project cannot be copied, or doit ended in the middle.
    """
    for conditions in CONDITIONS:
        root = folder / conditions.folder
        copy_project(project.root, root, without=(project.build, project.state, folder))
        (root.parent / "tmp").mkdir()
        began = time.monotonic()
        ends = _build(project, conditions, root, dodo, actions)
        yield Built(conditions, root, time.monotonic() - began, ends)


def _build(
    project: Project, conditions: Conditions, root: Path, dodo: str, actions: Sequence[Action]
) -> dict[str, dict[str, str]]:
    ends: dict[str, dict[str, str]] = {}
    targets = [action.target for action in actions]
    command = [sys.executable, "-c", _DOIT, str(os.getpid()), "-f", dodo, "--continue", *targets]
    current: dict[str, str] = {}
    with _running(command, _environment(project, root, conditions), root) as process:
        assert process.stdout is not None
        for line in process.stdout:
            word, rest = line[:_WORD_WIDTH].strip(), line[_WORD_WIDTH:].rstrip("\n").split("  ", 2)
            where = f"{conditions.name}, {len(ends) + 1} of {len(targets)}: {rest[0]}"
            if word == "run" and rest[0] in targets:
                report_progress(f"{where} …")
            elif word in _ENDS and rest[0] in targets:
                took, reason = (*rest[1:], "", "")[:2]
                current = ends[rest[0]] = {"status": _ENDS[word], "reason": reason}
                report_progress(
                    f"{where} {_ENDS[word]}, {took}" + (f": {reason}" if reason else "")
                )
            elif not word and rest[0] and current and not rest[0].startswith("log: "):
                current["reason"] += f"\n{'  '.join(rest)}"  # of several lines
            else:
                current = {}
    for action in actions:
        if action.target not in ends:
            bad = [
                n for n in action.after if ends.get(n, {}).get("status") in ("failed", "not run")
            ]
            if not bad:
                code = process.returncode
                raise StageError(
                    f"the {conditions.name} ended at {action.target}, exit code {code}",
                    f"`doit debug {action.target}` runs it in the foreground",
                )
            ends[action.target] = {"status": "not run", "reason": f"needs {', '.join(bad)}"}
    return ends


def _environment(project: Project, root: Path, conditions: Conditions) -> dict[str, str]:
    configs, inside = project.configs, project.configs.is_relative_to(project.root)
    return {
        **package_environment(),
        "BUILDSYS_BUILD": BUILD,
        "BUILDSYS_CONFIGS": str(configs.relative_to(project.root) if inside else configs),
        # benchmarks of this user still exclude each other
        "BUILDSYS_MACHINE_LOCK": str(machine_lock_folder()),
        "BUILDSYS_HISTORY": str(root / STATE_FOLDER / "history.db"),
        # nothing may come from a cache or a server of another build
        "BUILDSYS_STORE": str(root / STATE_FOLDER / "store"),
        "BUILDSYS_REMOTE": "",
        "BUILDSYS_WORKER_IDLE": "0",
        "PYTHONHASHSEED": conditions.hash_seed,
        "TMPDIR": str(root.parent / "tmp"),
    }


@contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path
) -> Iterator[subprocess.Popen[str]]:
    """Run a doit process; stop it if the block is left early."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, cwd=cwd, stdout=pipe, text=True, errors="replace"
    ) as process:
        try:
            yield process
            process.wait()
        finally:
            if process.poll() is None:
                process.terminate()  # SIGINT may have reached it, and a second one kills it
                try:
                    process.wait(_END_LIMIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def copy_project(root: Path, target: Path, *, without: Collection[Path]) -> None:
    """Copy the project to the new folder ``target``, except ``without``.

    Large files, hidden folders and virtual environments become links.

    Raises: StageError: something cannot be read or written.
    """
    try:
        _copy_folder(root, target, root, frozenset(without))
    except OSError as error:
        path = error.filename2 or error.filename
        raise StageError(
            f"cannot copy the project: {error.strerror}: {path}",
            "check the file, or the free space of the temporary folder",
        ) from error


def _copy_folder(folder: Path, target: Path, root: Path, without: frozenset[Path]) -> None:
    if len(folder.parts) - len(root.parts) > _DEEPEST:
        raise StageError(
            f"cannot copy the project: more than {_DEEPEST} levels: {folder}",
            "remove a link that leads into itself",
        )
    target.mkdir(parents=True)
    for entry in list(os.scandir(folder)):  # it is closed before an error
        path, copy = Path(entry.path), target / entry.name
        if path in without or entry.name in _LEFT_OUT:
            continue
        if entry.is_symlink():
            link = path.readlink()
            inside = Path(os.path.normpath(folder / link)).is_relative_to(root)
            relative = inside and not link.is_absolute()
            copy.symlink_to(link if relative else os.path.normpath(folder / link))
        elif entry.is_dir():
            if entry.name.startswith(".") or (path / "pyvenv.cfg").exists():
                copy.symlink_to(path)
            else:
                _copy_folder(path, copy, root, without)
        elif entry.is_file() and entry.stat().st_size <= _COPIED_BYTES:
            shutil.copy(path, copy)
        elif entry.is_file():
            copy.symlink_to(path)
