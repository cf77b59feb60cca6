"""Read the result files of a model's targets. A result that is missing or unreadable never counts as passed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, UNAVAILABLE, ABSENT = "passed", "failed", "unavailable", "absent"
STALE = "stale"  # what lies there is of an earlier pass, and nothing of it is told
_HEADER = {
    "schema",
    "target",
    "stage",
    "model",
    "variant",
    "status",
    "reason",
    "hint",
    "started",
    "seconds",
    "toolchain",
}


@dataclass(frozen=True)
class Result:
    """What one target left in its result file; ``status`` is ``absent`` where there is none."""

    target: str
    stage: str
    variant: str
    status: str
    reason: str = ""
    hint: str = ""
    seconds: float | None = None
    started: str = ""
    toolchain: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""  # relative to the model's folder

    @property
    def log(self) -> str:
        """Return the path of the target's log, relative to the model's folder."""
        return f"{self.file.removesuffix('.json')}.log" if self.file else ""


def read_results(inputs: Mapping[str, Path]) -> tuple[Result, ...]:
    """Return the results of all ``inputs`` (target -> result file), in their order."""
    folder = _common_folder(inputs)
    return tuple(
        read_result(target, path, os.path.relpath(path, folder)) for target, path in inputs.items()
    )


def read_result(target: str, path: Path, file: str) -> Result:
    """Return the result of one target; one that is of another target or not JSON counts as failed."""
    stage, _, rest = target.partition(":")
    blank = Result(
        target, stage, rest.partition(":")[2], ABSENT, "there is no result file", file=file
    )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return blank
    except (OSError, ValueError) as error:
        return _unusable(blank, f"the result file cannot be read: {error}")
    if not isinstance(content, dict) or content.get("target") != target:
        return _unusable(blank, "the result file is not of this target")
    return _filled(blank, content)


def mapping(value: object) -> Mapping[str, Any]:
    """Return ``value`` where it is a map, else an empty one (a figure that was not measured)."""
    return value if isinstance(value, Mapping) else {}


def number(value: object) -> float | None:
    """Return a figure as a float, or None where there is none. ``"nan"`` and ``"inf"`` are numbers here."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def whole(value: object) -> int | None:
    """Return a count as an int, or None where there is none."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) else None


def texts(value: object) -> tuple[str, ...]:
    """Return a list of messages as strings; a single message counts as a list of one."""
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(str(entry) for entry in value) if isinstance(value, (list, tuple)) else ()


def _common_folder(inputs: Mapping[str, Path]) -> Path:
    folders = [str(path.parent) for path in inputs.values()]
    return Path(os.path.commonpath(folders)) if folders else Path()


def _unusable(blank: Result, reason: str) -> Result:
    return Result(blank.target, blank.stage, blank.variant, FAILED, reason, file=blank.file)


def _filled(blank: Result, content: Mapping[str, Any]) -> Result:
    status = str(content.get("status", ""))
    known = status in (PASSED, FAILED, UNAVAILABLE)
    return Result(
        target=blank.target,
        stage=blank.stage,
        variant=blank.variant,
        status=status if known else FAILED,
        reason=str(content.get("reason") or "") if known else f"unknown status {status!r}",
        hint=str(content.get("hint") or ""),
        seconds=number(content.get("seconds")),
        started=str(content.get("started") or ""),
        toolchain={
            str(name): str(version) for name, version in mapping(content.get("toolchain")).items()
        },
        figures={key: value for key, value in content.items() if key not in _HEADER},
        file=blank.file,
    )
