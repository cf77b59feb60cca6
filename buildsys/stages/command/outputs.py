"""Outputs of a command, from its working folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from buildsys.errors import StageError, joined
from buildsys.manifest.command_templates import RESERVED
from buildsys.report.formatting import first_names
from buildsys.report.results.command import CommandOutput
from buildsys.workers.job import Job

_SHOWN = 8


def collect_outputs(job: Job, work: Path, hint: str) -> dict[str, CommandOutput]:
    """Move the declared outputs; log what is left out.

    Raises: StageError: one is missing, empty or not a file.
    """
    declared = job.options["outputs"]
    for label, path in declared.items():
        found, is_folder = work / path, path.endswith("/")
        if problem := _problem(found, is_folder=is_folder):
            others = sorted(_undeclared(work, {}))
            wrote = f"it wrote {first_names(others, _SHOWN)}" if others else "it wrote nothing"
            text = f'the command {job.variant} of {job.model} wrote no output "{label}"'
            raise StageError(f"{text}: {path} {problem}", joined(wrote, hint))
    if left_out := sorted(_undeclared(work, declared)):
        job.progress(f"removed {first_names(left_out, _SHOWN)}, which no output declares")
    moved: dict[str, CommandOutput] = {}
    for label, path in declared.items():
        place = job.outputs[f"output.{label}"]
        if not path.endswith("/"):
            _own_file(work / path)
            (work / path).replace(place)
            moved[label] = {"path": path, "files": 1, "bytes": place.stat().st_size}
            continue
        source, folder = work / path, place.with_suffix("")
        names = sorted(each.relative_to(source).as_posix() for each in _files(source, job))
        for name in names:
            _own_file(source / name)
        source.replace(folder)
        place.write_text(json.dumps(names, indent=0) + "\n", encoding="utf-8")
        size = sum((folder / name).stat().st_size for name in names)
        moved[label] = {"path": path, "files": len(names), "bytes": size}
    return moved


def _problem(found: Path, *, is_folder: bool) -> str:
    if not found.exists():
        return "does not exist"
    if is_folder:
        if not found.is_dir() or found.is_symlink():
            return "is not a folder"
        return "" if any(path.is_file() for path in found.rglob("*")) else "is empty"
    return "" if found.is_file() else "is not a file"


def _undeclared(work: Path, declared: dict[str, str]) -> Iterator[str]:
    """Yield files and folders outside of the declared outputs."""
    known = [work / path for path in declared.values()]
    waiting = [path for path in work.iterdir() if path.name not in RESERVED]
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        if path.is_dir() and any(path in each.parents for each in known):
            waiting += path.iterdir()
        else:
            yield path.relative_to(work).as_posix() + ("/" if path.is_dir() else "")


def _files(folder: Path, job: Job) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path
        elif not path.is_dir() or path.is_symlink():
            name = path.relative_to(folder)
            problem = f"the command {job.variant} of {job.model} wrote {name}, which is no file"
            raise StageError(problem, "write files and folders only")


def _own_file(path: Path) -> None:
    """Replace a link by a copy, independent of the input."""
    if path.is_symlink() or path.stat().st_nlink > 1:
        copy = path.with_name(f"{path.name},copy")
        shutil.copyfile(path, copy)
        copy.replace(path)
