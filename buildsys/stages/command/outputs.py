"""Outputs and figures of a command, from its working folder.

The program decides what is in this folder: links, pipes and devices are refused.
"""

import json
import math
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import IO, Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    FiniteFloat,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from buildsys.errors import StageError
from buildsys.manifest.command_templates import FIGURES_FILE, LISTING, RESERVED
from buildsys.report.formatting import beyond, first_names, number, size
from buildsys.stages.command.held_folder import HeldFolder
from buildsys.stages.command.result import CommandFigure, CommandOutput
from buildsys.store.record_file import check_name, check_names
from buildsys.system.files import MAX_RESULT_BYTES
from buildsys.system.printable import did_you_mean, printable_line
from buildsys.workers.job import Job

_MOST_NAMES = 8
_BLOCK_BYTES = 1 << 20
_Text = Annotated[str, StringConstraints(max_length=100, pattern=r"^[^\x00-\x1f]*$")]
_FORM = 'write {"time to first token": {"value": 1.2, "unit": "ms"}}'


class ReportedFigure(BaseModel):
    """A number as a command writes it, perhaps with an interval and limits."""

    model_config = ConfigDict(extra="forbid", strict=True)

    value: float  # one that is not finite is a failed check
    unit: _Text = ""
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    min: FiniteFloat | None = None
    max: FiniteFloat | None = None

    @model_validator(mode="after")
    def _check_order(self) -> "ReportedFigure":
        for least, most in (("low", "high"), ("min", "max")):
            ends = getattr(self, least), getattr(self, most)
            if None not in ends and ends[0] > ends[1]:
                raise ValueError(f"{least} {ends[0]:g} is more than {most} {ends[1]:g}")
        return self


_REPORT = TypeAdapter(dict[_Text, ReportedFigure])


def collect_outputs(job: Job, work: HeldFolder, place: HeldFolder) -> dict[str, CommandOutput]:
    """Copy the declared outputs from ``work`` to ``place``; log what is left out.

    Raises: StageError: one is missing, empty, not a file or folder, or cannot be copied.
    """
    declared: dict[str, str] = job.options["outputs"]
    written = sorted(
        printable_line(f"{entry.name}/" if entry.is_dir() else entry.name)
        for entry in os.scandir(work.descriptor)
        if entry.name not in RESERVED
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


def _copy(work: HeldFolder, place: HeldFolder, path: str) -> CommandOutput:
    """Copy a file or folder with its permissions; count its files and bytes.

    Raises: OSError, ValueError: it cannot be an output, or cannot be copied.
    """
    is_folder = path.endswith("/")
    with work.open(path) as source:
        if stat.S_ISDIR(os.fstat(source).st_mode) != is_folder:
            raise ValueError(f"{path} is not a {'folder' if is_folder else 'file'}")
    names = check_names(sorted(_files(work, path))) if is_folder else [path]
    if not names:
        raise ValueError(f"{path} is empty")
    written = sum(_copy_file(work, place, name) for name in names)
    if is_folder:
        listed = [str(PurePosixPath(name).relative_to(path)) for name in names]
        text = json.dumps(listed, indent=0) + "\n"
        listing = place.create(f"{PurePosixPath(path)}{LISTING}", 0o644)
        with listing as target, _file(target, "wb") as writer:
            writer.write(text.encode())
    return {"path": path, "files": len(names), "bytes": written}


def _files(work: HeldFolder, path: str) -> Iterator[str]:
    """List the files of a folder. Raises: OSError, ValueError: something else is there."""
    pending = [str(PurePosixPath(path))]
    while pending:
        name = pending.pop()
        if not name.isprintable():
            raise ValueError(f"the name {name!r} has characters that cannot be printed")
        check_name(name)
        with work.open(name) as source:
            if stat.S_ISDIR(os.fstat(source).st_mode):
                pending += [f"{name}/{entry.name}" for entry in os.scandir(source)]
            else:
                yield name


def _copy_file(work: HeldFolder, place: HeldFolder, name: str) -> int:
    """Copy a file with its permissions; return its size. Raises: OSError, ValueError."""
    with work.open(name) as source:
        status, disk = os.fstat(source), os.fstatvfs(place.descriptor)
        free = disk.f_bavail * disk.f_frsize
        if status.st_size > free:  # most likely a sparse file
            raise ValueError(f"{name} has {size(status.st_size)}, the disk {size(free)} left")
        with place.create(name, stat.S_IMODE(status.st_mode)) as target:
            with _file(source, "rb") as reader, _file(target, "wb") as writer:
                shutil.copyfileobj(reader, writer, _BLOCK_BYTES)
            return os.fstat(target).st_size


def _file(descriptor: int, mode: str) -> IO[bytes]:
    return open(descriptor, mode, closefd=False)


def read_figures(work: HeldFolder, job: Job) -> dict[str, ReportedFigure]:
    """Read the figures in the working folder of a command, as written.

    Raises: StageError: they do not have the documented form.
    """
    try:
        with work.open(FIGURES_FILE) as source, _file(source, "rb") as file:
            content = file.read(MAX_RESULT_BYTES + 1)
        if len(content) > MAX_RESULT_BYTES:
            raise ValueError(f"it has more than {size(MAX_RESULT_BYTES)}")
        if figures := _REPORT.validate_json(content):
            return figures
        problem = "there is none"
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"{place}: {first['msg']}" if place else first["msg"]
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
    most, least = figure.get("max", math.inf), figure.get("min", -math.inf)
    if least <= value <= most:
        return ""
    limit, word = (most, "more") if value > most else (least, "less")
    text = f"{name} is {beyond(value, limit, number)}{unit}"
    return f"{text}, {word} than its limit {number(limit)}{unit}"
