"""Outputs and figures of a command, from its working folder.

The program decides what is in this folder: links, pipes and devices are refused.
"""

from __future__ import annotations

import json
import math
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from buildsys.errors import StageError
from buildsys.manifest.command_templates import FIGURES_FILE, LISTING, RESERVED
from buildsys.report.formatting import first_names, number
from buildsys.stages.command.result import CommandFigure, CommandOutput
from buildsys.system.files import MAX_RESULT_BYTES, read_limited
from buildsys.system.printable import did_you_mean, printable_line
from buildsys.workers.job import Job

_MOST_NAMES = 8
_Text = Annotated[str, StringConstraints(max_length=100, pattern=r"^[^\x00-\x1f]*$")]
_FORM = 'write {"time to first token": {"value": 1.2, "unit": "ms"}}'


class ReportedFigure(BaseModel):
    """A number as a command writes it, perhaps with an interval and limits."""

    model_config = ConfigDict(extra="forbid", strict=True)

    value: float
    unit: _Text = ""
    low: float | None = None
    high: float | None = None
    min: float | None = None
    max: float | None = None


_REPORT = TypeAdapter(dict[_Text, ReportedFigure])


def collect_outputs(job: Job, work: Path, place: Path) -> dict[str, CommandOutput]:
    """Copy the declared outputs from ``work`` to ``place``; log what is left out.

    Raises: StageError: one is missing, empty, not a file or folder, or cannot be copied.
    """
    declared: dict[str, str] = job.options["outputs"]
    written = sorted(
        printable_line(f"{path.name}/" if path.is_dir() else path.name)
        for path in work.iterdir()
        if path.name not in RESERVED
    )
    outputs: dict[str, CommandOutput] = {}
    for label, path in declared.items():
        try:
            outputs[label] = _copy(work, place, path)
        except (ValueError, OSError) as error:
            is_missing = isinstance(error, FileNotFoundError)
            problem = f"{path} does not exist" if is_missing else error
            text = f'the command {job.variant} of {job.model} wrote no output "{label}": {problem}'
            names = first_names(written, _MOST_NAMES) or "nothing"
            raise StageError(printable_line(text), f"it wrote {names}") from None
    roots = {PurePosixPath(path).parts[0] for path in declared.values()}
    if others := [name for name in written if name.rstrip("/") not in roots]:
        job.progress(f"removed {first_names(others, _MOST_NAMES)}, which no output declares")
    return outputs


def _copy(work: Path, place: Path, path: str) -> CommandOutput:
    """Copy a file or folder with its permissions; count its files and bytes.

    Raises: OSError, ValueError: it cannot be an output, or cannot be copied.
    """
    source, target, is_folder = plain_path(work, path), place / path, path.endswith("/")
    if source.is_dir() != is_folder:
        raise ValueError(f"{path} is not a {'folder' if is_folder else 'file'}")
    names = sorted(file.relative_to(source) for file in source.rglob("*") if _is_file(file))
    if is_folder and not names:
        raise ValueError(f"{path} is empty")
    for name in names or [Path()]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, target / name)
    if is_folder:
        listing = target.with_name(f"{target.name}{LISTING}")
        listing.write_text(json.dumps(list(map(str, names)), indent=0) + "\n", encoding="utf-8")
    size = sum((source / name).stat().st_size for name in names or [Path()])
    return {"path": path, "files": len(names) or 1, "bytes": size}


def plain_path(work: Path, path: str) -> Path:
    """Join a path that leads through no link.

    Raises: OSError, ValueError: it does not exist; a part of it is a link, a pipe or a device.
    """
    place = work
    for part in ("", *PurePosixPath(path).parts):
        place /= part
        _is_file(place)
    return place


def _is_file(path: Path) -> bool:
    """Tell a file from a folder. Raises: OSError, ValueError: it is neither."""
    mode = path.lstat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or not path.name.isprintable():
        kind = "a link; `cp -L` copies what it names" if stat.S_ISLNK(mode) else "not a plain file"
        raise ValueError(f"{path.name} is {kind}")
    return stat.S_ISREG(mode)


def read_figures(work: Path, job: Job) -> dict[str, ReportedFigure]:
    """Read the figures in the working folder of a command, as written.

    Raises: StageError: they do not have the documented form.
    """
    try:
        content = read_limited(plain_path(work, FIGURES_FILE), MAX_RESULT_BYTES)
        if figures := _REPORT.validate_json(content):
            return figures
        problem = "there is none"
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except FileNotFoundError:
        problem = "it did not write {figures}"
    except (OSError, ValueError) as error:
        problem = str(error)
    text = f"the command {job.variant} of {job.model} has no valid figures: {problem}"
    raise StageError(printable_line(text), _FORM)


def check_limits(
    reported: Mapping[str, ReportedFigure], limits: Mapping[str, Mapping[str, Any]], job: Job
) -> tuple[dict[str, CommandFigure], str]:
    """Compare figures with their limits; a sentence names those beyond.

    A limit of the manifest replaces the command's.
    Raises: StageError: there is no figure of a limit.
    """
    if unknown := next((name for name in limits if name not in reported), None):
        problem = f'the command {job.variant} of {job.model} reports no figure "{unknown}"'
        hint = did_you_mean(unknown, reported, f"it reports {', '.join(reported)}")
        raise StageError(problem, hint)
    figures: dict[str, CommandFigure] = {}
    failures = []
    for name, written in reported.items():
        bounds = limits.get(name) or {"min": written.min, "max": written.max}
        figure: CommandFigure = {"value": written.value, "unit": written.unit}
        if written.low is not None and written.high is not None:
            figure["interval"] = [written.low, written.high]
        if bounds["min"] is not None:
            figure["min"] = float(bounds["min"])
        if bounds["max"] is not None:
            figure["max"] = float(bounds["max"])
        if problem := _beyond(name, figure):
            failures.append(problem)
        if problem or "min" in figure or "max" in figure:
            figure["passed"] = not problem
        figures[name] = figure
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return figures, f"{failures[0]}{more}" if failures else ""


def _beyond(name: str, figure: CommandFigure) -> str:
    """Say how a figure exceeds its limits, "" if it does not."""
    value, unit = figure["value"], f" {figure['unit']}" if figure["unit"] else ""
    if not math.isfinite(value):
        return f"{name} is not a finite number"
    text = f"{name} is {number(value)}{unit}"
    if value > figure.get("max", math.inf):
        return f"{text}, more than its limit {number(figure['max'])}{unit}"
    if value < figure.get("min", -math.inf):
        return f"{text}, less than its limit {number(figure['min'])}{unit}"
    return ""
