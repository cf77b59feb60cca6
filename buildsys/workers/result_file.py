"""Result files of targets: common header and stage figures as JSON."""

import json
import math
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from buildsys.errors import joined
from buildsys.system.backend_registry import describe_backend
from buildsys.workers.job import RESULT_SCHEMA, Job, StageResult

_LIBRARIES = (
    "ml_dtypes", "modelopt", "numpy", "onnx", "onnxruntime", "onnxscript", "onnxsim", "onnxslim",
    "tensorrt", "tensorrt_rtx", "torch", "torchvision",
)  # fmt: skip
TARGET_FIELDS = ("target", "stage", "model", "variant")  # jobs and actions have them
_NOTHING_RAN = {"seconds": 0.0, "peak_rss_mib": 0.0}
_REPLY_ITEMS = 16
_NUMBERS = re.compile(r'\[\n([^\[\]{}"]*)\]')


def write_result(
    job: Job,
    result: StageResult,
    *,
    started: datetime,
    measured: Mapping[str, float] = _NOTHING_RAN,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write the output ``result`` of ``job``. ``versions`` default to those in this process.

    Raises: TypeError, ValueError: a figure is not JSON; nothing is written.
    """
    toolchain = job.runs_in
    name = {"name": toolchain.name} if toolchain is not None else {}
    text = result_text(
        {field: getattr(job, field) for field in TARGET_FIELDS},
        result,
        started=started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        measured=measured,
        toolchain={**name, **(_loaded_versions(job) if versions is None else versions)},
    )
    job.outputs["result"].write_text(text, encoding="utf-8")


def amend_result(file: Path, *, hint: str = "", warnings: Sequence[str] = ()) -> None:
    """Add to the hint and warnings of a result file; publishing reports an invalid one."""
    with suppress(OSError, ValueError):
        result = json.loads(file.read_text(encoding="utf-8"))
        result["hint"] = joined(hint, result.get("hint", ""))
        if warnings:
            result["warnings"] = [*(result.get("warnings") or ()), *warnings]
        file.write_text(format_figures(result), encoding="utf-8")


def result_text(
    target: Mapping[str, str],
    result: StageResult,
    *,
    started: str,
    measured: Mapping[str, float],
    toolchain: Mapping[str, str],
) -> str:
    """Format the content of a result file.

    ``target`` has the values of TARGET_FIELDS; ``started`` is ISO 8601.
    Raises: TypeError, ValueError: a figure is not JSON.
    """
    header = {
        "schema": RESULT_SCHEMA,
        **target,
        "status": result.status,
        "reason": result.reason,
        "hint": result.hint,
        "started": started,
        **measured,
        "toolchain": toolchain,
    }
    return format_figures({**header, **result.figures})


def _loaded_versions(job: Job) -> dict[str, str]:
    """List the versions of Python and of this process's libraries."""
    backend = job.options.get("engine", {}).get("backend")
    names = (*_LIBRARIES, *([describe_backend(backend).module] if backend else ()))
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    versions = {name: str(version) for name, version in loaded.items() if version}
    return {"python": platform.python_version(), **versions}


def without_long_lists(figures: Any) -> Any:
    """Leave out long lists from ``figures``. Raw samples stay in the result file."""
    if isinstance(figures, Mapping):
        return {
            name: without_long_lists(value)
            for name, value in figures.items()
            if not isinstance(value, (list, tuple)) or len(value) <= _REPLY_ITEMS
        }
    if isinstance(figures, (list, tuple)):
        return [without_long_lists(item) for item in figures]
    return _finite(figures)


def format_figures(figures: Mapping[str, Any]) -> str:
    """Format ``figures`` as indented JSON. A list of numbers takes one line.

    JSON has no NaN and no infinity: they become ``null``, which readers treat as unknown.
    """
    try:
        text = json.dumps(figures, ensure_ascii=False, indent=2, allow_nan=False)
    except ValueError:
        text = json.dumps(_all_finite(figures), ensure_ascii=False, indent=2)
    # within a string, JSON has no line break
    return _NUMBERS.sub(lambda match: f"[{' '.join(match[1].split())}]", text) + "\n"


def _all_finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _all_finite(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_all_finite(member) for member in value]
    return _finite(value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
