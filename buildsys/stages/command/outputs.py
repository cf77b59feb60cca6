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
from typing import Any

from buildsys.errors import StageError
from buildsys.manifest.command_templates import FIGURES_FILE, LISTING, RESERVED
from buildsys.report.formatting import first_names, number
from buildsys.stages.command.result import CommandFigure, CommandOutput
from buildsys.system.files import MAX_RESULT_BYTES, read_limited
from buildsys.system.printable import nearest, printable_line
from buildsys.workers.job import Job

_MOST_NAMES = 8
_LONGEST_NAME = 100
_NUMBERS = {"value", "low", "high", "min", "max"}
_FORM = 'write {"time to first token": {"value": 1.2, "unit": "ms"}}'


def collect_outputs(job: Job, work: Path, place: Path) -> dict[str, CommandOutput]:
    """Copy the declared outputs from ``work`` to ``place``; log what is left out.

    Raises: StageError: one is missing, empty, not a file or folder, or cannot be copied.
    """
    declared: dict[str, str] = job.options["outputs"]
    roots = {PurePosixPath(path).parts[0] for path in declared.values()}
    others = [name for name in _names(work) if name.rstrip("/") not in roots]
    outputs: dict[str, CommandOutput] = {}
    for label, path in declared.items():
        try:
            files, size = _copy(work, place, path)
        except FileNotFoundError:
            problem = f"{path} does not exist"
        except (ValueError, OSError) as error:
            problem = str(error)
        else:
            outputs[label] = {"path": path, "files": files, "bytes": size}
            continue
        wrote = first_names(_names(work), _MOST_NAMES) or "nothing"
        text = f'the command {job.variant} of {job.model} wrote no output "{label}": {problem}'
        raise StageError(printable_line(text), f"it wrote {wrote}")
    if others:
        job.progress(f"removed {first_names(others, _MOST_NAMES)}, which no output declares")
    return outputs


def _names(work: Path) -> list[str]:
    """List what the program wrote into its working folder."""
    return sorted(
        printable_line(f"{path.name}/" if path.is_dir() else path.name)
        for path in work.iterdir()
        if path.name not in RESERVED
    )


def _copy(work: Path, place: Path, path: str) -> tuple[int, int]:
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
    return len(names) or 1, sum((source / name).stat().st_size for name in names or [Path()])


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
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a link; `cp -L` copies what it names" if stat.S_ISLNK(mode) else "a special file"
        raise ValueError(f"{path.name} is {kind}")
    if not path.name.isprintable():
        raise ValueError(f"the name {path.name} is not printable text")
    return stat.S_ISREG(mode)


def read_figures(work: Path, job: Job) -> dict[str, dict[str, Any]]:
    """Read the figures in the working folder of a command, as written.

    Raises: StageError: they do not have the documented form.
    """
    who = f"the command {job.variant} of {job.model}"
    try:
        figures = json.loads(read_limited(plain_path(work, FIGURES_FILE), MAX_RESULT_BYTES))
    except FileNotFoundError:
        raise StageError(f"{who} did not write {{figures}}", _FORM) from None
    except (OSError, ValueError) as error:
        raise StageError(f"the figures of {who} are not JSON: {error}", _FORM) from None
    if not isinstance(figures, dict) or not figures:
        raise StageError(f"the figures of {who} are not a map of figures", _FORM)
    for name, figure in figures.items():
        is_name = name.strip() and name.isprintable() and len(name) <= _LONGEST_NAME
        if not is_name or not _is_figure(figure):
            problem = f"the figure {name[:_LONGEST_NAME]!r} of {who} does not have the right form"
            raise StageError(problem, _FORM)
    return figures


def _is_figure(figure: object) -> bool:
    """Check the form: a value, perhaps a unit, an interval and limits."""
    if not isinstance(figure, dict) or "value" not in figure:
        return False
    numbers = {name: value for name, value in figure.items() if name != "unit"}
    unit = figure.get("unit", "")
    return (
        numbers.keys() <= _NUMBERS
        and all(type(value) in (int, float) for value in numbers.values())
        and isinstance(unit, str)
        and unit.isprintable()
    )


def check_limits(
    reported: Mapping[str, dict[str, Any]], limits: Mapping[str, Mapping[str, Any]], job: Job
) -> tuple[dict[str, CommandFigure], str]:
    """Compare figures with their limits; a sentence names those beyond.

    A limit of the manifest replaces the command's.
    Raises: StageError: there is no figure of a limit.
    """
    for name in limits:
        if name not in reported:
            close = nearest(name, reported, count=1)
            hint = f"did you mean {close[0]}?" if close else f"it reports {', '.join(reported)}"
            problem = f'the command {job.variant} of {job.model} reports no figure "{name}"'
            raise StageError(problem, hint)
    figures: dict[str, CommandFigure] = {}
    failures = []
    for name, written in reported.items():
        bounds = limits.get(name) or written
        least, most = bounds.get("min"), bounds.get("max")
        value = float(written["value"])
        figure: CommandFigure = {"value": value, "unit": written.get("unit", "")}
        if "low" in written and "high" in written:
            figure["interval"] = [float(written["low"]), float(written["high"])]
        if least is not None:
            figure["min"] = float(least)
        if most is not None:
            figure["max"] = float(most)
        if problem := _beyond(name, figure):
            failures.append(problem)
        if problem or least is not None or most is not None:
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
