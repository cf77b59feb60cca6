"""Outputs and figures of a command, from its working folder.

The program decides what is in this folder: links, pipes and devices are refused.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from buildsys.errors import StageError, joined
from buildsys.manifest.command_templates import FIGURES_FILE, LISTING, RESERVED
from buildsys.report.formatting import first_names, number
from buildsys.stages.command.result import CommandFigure, CommandOutput
from buildsys.system.files import MAX_RESULT_BYTES, read_limited
from buildsys.system.printable import printable_line
from buildsys.system.suggestions import nearest
from buildsys.workers.job import Job

_SHOWN = 8
_SURROGATES = re.compile("[\ud800-\udfff]")
_MAX_PATH_BYTES = 1024  # as in the store's records
_NUMBERS = ("value", "low", "high", "min", "max")
_FIELDS = (*_NUMBERS, "unit")
_MOST_FIGURES, _LONGEST_NAME = 200, 100
_FORM = 'write {"time to first token": {"value": 1.2, "unit": "ms"}}'


def collect_outputs(job: Job, work: Path, place: Path, hint: str) -> dict[str, CommandOutput]:
    """Copy the declared outputs from ``work`` to ``place``; log what is left out.

    Raises: StageError: one is missing, empty, or not a file or folder.
    """
    declared: dict[str, str] = job.options["outputs"]
    files: dict[str, list[str]] = {}
    for label, path in declared.items():
        problem, remedy = "", ""
        try:
            files[label] = _files(work, path)
            problem = "" if files[label] else f"{path} is empty"
        except (FileNotFoundError, NotADirectoryError):
            problem = f"{path} does not exist"
        except OSError as error:
            problem, remedy = error.strerror or str(error), _remedy(error)
        if problem:
            others = _undeclared(work, ())
            wrote = f"it wrote {first_names(others, _SHOWN)}" if others else "it wrote nothing"
            text = f'the command {job.variant} of {job.model} wrote no output "{label}": {problem}'
            raise StageError(text, joined(wrote, remedy, hint))
    if left_out := _undeclared(work, declared.values()):
        job.progress(f"removed {first_names(left_out, _SHOWN)}, which no output declares")
    copied: dict[str, CommandOutput] = {}
    for label, path in declared.items():
        size = sum(_copy(job, work, place, name) for name in files[label])
        copied[label] = {"path": path, "files": len(files[label]), "bytes": size}
        if path.endswith("/"):
            folder = PurePosixPath(path)
            names = [str(PurePosixPath(name).relative_to(folder)) for name in files[label]]
            text = json.dumps(names, indent=0) + "\n"
            (place / f"{folder}{LISTING}").write_text(text, encoding="utf-8")
    return copied


def _plain_path(folder: Path, path: str) -> Path:
    """Join a path that leads through no link.

    Raises: OSError: it does not exist; a part of it is a link, a pipe or a device.
    """
    place = folder
    for part in PurePosixPath(path).parts:
        place /= part
        mode = place.lstat().st_mode
        if part == ".." or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            kind = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
            raise OSError(errno.ELOOP, f"{part} is {kind}", path)
    return place


def _files(work: Path, path: str) -> list[str]:
    """List a declared file, or everything but folders below a declared folder.

    Raises: OSError: it cannot be an output.
    """
    is_folder = _plain_path(work, path).is_dir()
    if is_folder != path.endswith("/"):
        raise OSError(0, f"{path} is not a {'file' if is_folder else 'folder'}")
    files: list[str] = []
    waiting = [str(PurePosixPath(path))]
    if not is_folder:
        return waiting
    while waiting:
        folder = waiting.pop()
        for name, is_inner in _entries(work / folder):
            inner = f"{folder}/{name}"
            if len(os.fsencode(inner)) > _MAX_PATH_BYTES:
                raise OSError(0, f"a path in {path} has more than {_MAX_PATH_BYTES:,} bytes")
            if _SURROGATES.search(name):
                raise OSError(0, f"the name {printable_line(inner)} is not UTF-8")
            (waiting if is_inner else files).append(inner)
    return sorted(files)


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """List the names in a folder, and whether they are folders."""
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


def _copy(job: Job, work: Path, place: Path, path: str) -> int:
    """Copy one file with its permissions; return its size in bytes. Raises: StageError."""
    try:
        source, target = _plain_path(work, path), place / path
        status, free_bytes = source.stat(), shutil.disk_usage(place).free
        if status.st_size > free_bytes:
            size = f"{status.st_size / 2**30:,.1f} GiB"
            problem = f"its {size} are more than the free space of the build folder"
            raise OSError(errno.ENOSPC, problem)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(status.st_mode & 0o777)
    except OSError as error:
        who = f"the command {job.variant} of {job.model}"
        problem = f"cannot copy {printable_line(path)}, which {who} wrote: {error.strerror}"
        raise StageError(problem, _remedy(error)) from None
    return status.st_size


def empty_folder(folder: Path) -> None:
    """Remove what is in a folder, as far as possible."""
    for name, is_folder in _entries(folder):
        if is_folder:
            shutil.rmtree(folder / name, ignore_errors=True)
        else:
            (folder / name).unlink(missing_ok=True)


def _remedy(error: OSError) -> str:
    is_link = error.errno == errno.ELOOP
    return "write files and folders only: `cp -L` copies what a link names" if is_link else ""


def _undeclared(work: Path, declared: Iterable[str]) -> list[str]:
    """List files and folders outside of the declared outputs."""
    outputs = [PurePosixPath(path) for path in declared]
    names, waiting = [], [PurePosixPath()]
    while waiting:
        folder = waiting.pop()
        for name, is_folder in _entries(work / folder):
            path = folder / name
            if path in outputs or (name in RESERVED and folder == PurePosixPath()):
                continue
            if is_folder and any(path in output.parents for output in outputs):
                waiting.append(path)
            else:
                names.append(printable_line(f"{path}/" if is_folder else str(path)))
    return sorted(names)


def read_figures(work: Path, job: Job) -> dict[str, dict[str, Any]]:
    """Read the figures in the working folder of a command, as written.

    Raises: StageError: they do not have the documented form.
    """
    who = f"the command {job.variant} of {job.model}"
    try:
        figures = json.loads(read_limited(_plain_path(work, FIGURES_FILE), MAX_RESULT_BYTES))
    except FileNotFoundError:
        raise StageError(f"{who} did not write {{figures}}", _FORM) from None
    except OSError as error:
        raise StageError(f"cannot read the figures of {who}: {error.strerror}", _FORM) from None
    except ValueError as error:
        raise StageError(f"the figures of {who} are not JSON: {error}", _FORM) from None
    if not isinstance(figures, dict) or not figures:
        raise StageError(f"the figures of {who} are not a map of figures", _FORM)
    if len(figures) > _MOST_FIGURES:
        raise StageError(f"{who} reports more than {_MOST_FIGURES} figures", "report fewer")
    for name, figure in figures.items():
        if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
            raise StageError(f"{who} reports a figure with the name {name[:50]!r}", _FORM)
        fields = figure if isinstance(figure, dict) else {}
        wrong = [field for field in fields if field not in _FIELDS]
        if "value" not in fields or wrong:
            problem = f"has the unknown field {wrong[0]}" if wrong else "has no value"
            raise StageError(f'the figure "{name}" of {who} {problem}', _FORM)
        for field, value in fields.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (isinstance(value, str) and value.isprintable() if field == "unit"
                    else is_number):  # fmt: skip
                kind = "text" if field == "unit" else "number"
                problem = f'{field} of the figure "{name}" of {who} is no {kind}'
                raise StageError(problem, _FORM)
    return figures


def check_limits(
    found: Mapping[str, dict[str, Any]], limits: Mapping[str, Mapping[str, Any]], job: Job
) -> tuple[dict[str, CommandFigure], str]:
    """Compare figures with their limits; a sentence names those beyond.

    A limit of the manifest replaces that of the command.
    Raises: StageError: there is no figure of a limit.
    """
    for name in limits:
        if name not in found:
            close = nearest(name, found, count=1)
            hint = f"did you mean {close[0]}?" if close else f"it reports {', '.join(found)}"
            problem = f'the command {job.variant} of {job.model} reports no figure "{name}"'
            raise StageError(problem, hint)
    figures: dict[str, CommandFigure] = {}
    failures = []
    for name, written in found.items():
        limit = limits.get(name, {})
        bounds = {field: limit.get(field) for field in ("min", "max")} if limit else written
        least, most = bounds.get("min"), bounds.get("max")
        value = float(written["value"])
        figure: CommandFigure = {"value": value, "unit": written.get("unit", "")}
        if "low" in written and "high" in written:
            figure["interval"] = [float(written["low"]), float(written["high"])]
        if least is not None:
            figure["min"] = float(least)
        if most is not None:
            figure["max"] = float(most)
        if least is not None or most is not None or not math.isfinite(value):
            inside = (least is None or value >= least) and (most is None or value <= most)
            figure["passed"] = inside and math.isfinite(value)
            if not figure["passed"]:
                failures.append(_sentence(name, figure))
        figures[name] = figure
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return figures, f"{failures[0]}{more}" if failures else ""


def _sentence(name: str, figure: CommandFigure) -> str:
    value, unit = figure["value"], f" {figure['unit']}" if figure["unit"] else ""
    text = f"{name} is {number(value)}{unit}"
    if not math.isfinite(value):
        return f"{name} is not a finite number"
    if "max" in figure and value > figure["max"]:
        return f"{text}, more than its limit {number(figure['max'])}{unit}"
    return f"{text}, less than its limit {number(figure['min'])}{unit}"
