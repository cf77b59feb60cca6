"""Figures of a command, and their limits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildsys.errors import StageError
from buildsys.manifest.command_templates import FIGURES_FILE
from buildsys.report.formatting import number
from buildsys.report.results.command import CommandFigure
from buildsys.system.beneath import held, open_beneath
from buildsys.system.files import MAX_RESULT_BYTES, read_limited
from buildsys.system.suggestions import nearest
from buildsys.workers.job import Job

_NUMBERS = ("value", "low", "high", "min", "max")
_FIELDS = (*_NUMBERS, "unit")
_MOST_FIGURES, _LONGEST_NAME = 200, 100
_FORM = 'write {"time to first token": {"value": 1.2, "unit": "ms"}}'


def read_figures(work: int, job: Job) -> dict[str, dict[str, Any]]:
    """Return the figures in the open working folder of a command, as written.

    Raises: StageError: they do not have the documented form.
    """
    who = f"the command {job.variant} of {job.model}"
    try:
        with held(open_beneath(work, FIGURES_FILE)) as file:
            found = json.loads(read_limited(Path(f"/proc/self/fd/{file}"), MAX_RESULT_BYTES))
    except FileNotFoundError:
        raise StageError(f"{who} did not write {{figures}}", _FORM) from None
    except OSError as error:
        raise StageError(f"cannot read the figures of {who}: {error.strerror}", _FORM) from None
    except ValueError as error:
        raise StageError(f"the figures of {who} are not JSON: {error}", _FORM) from None
    if not isinstance(found, dict) or not found:
        raise StageError(f"the figures of {who} are not a map of figures", _FORM)
    if len(found) > _MOST_FIGURES:
        raise StageError(f"{who} reports more than {_MOST_FIGURES} figures", "report fewer")
    for name, figure in found.items():
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
    return found


def check_limits(
    found: Mapping[str, dict[str, Any]], limits: Mapping[str, Mapping[str, Any]], job: Job
) -> tuple[dict[str, CommandFigure], str]:
    """Return figures with limits, and a sentence about those beyond.

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
        given = limits.get(name, {})
        bounds = {field: given.get(field) for field in ("min", "max")} if given else written
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
    shown = f"{name} is {number(value)}{unit}"
    if not math.isfinite(value):
        return f"{name} is not a finite number"
    if "max" in figure and value > figure["max"]:
        return f"{shown}, more than its limit {number(figure['max'])}{unit}"
    return f"{shown}, less than its limit {number(figure['min'])}{unit}"
