"""Result files of targets: common header and stage figures as JSON."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol

from buildsys.workers.job import RESULT_SCHEMA, Job, StageResult
from buildsys.workers.server_kinds import toolchain_of

_LIBRARIES = (
    "ml_dtypes", "modelopt", "numpy", "onnx", "onnxruntime", "onnxscript", "onnxsim", "onnxslim",
    "tensorrt", "tensorrt_rtx", "torch", "torchvision",
)  # fmt: skip
_REPLY_ITEMS = 16
_SCALARS = (str, int, float, type(None))


def write_result(
    job: Job,
    result: StageResult,
    *,
    started: datetime,
    seconds: float,
    peak_rss_mib: float,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write the output ``result`` of ``job``. ``versions`` default to those in this process.

    Raises: TypeError, ValueError: a figure is not JSON; nothing is written.
    """
    toolchain = toolchain_of(job)
    name = {"name": toolchain.name} if toolchain is not None else {}
    text = result_text(
        job,
        result,
        started=started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        measured={"seconds": seconds, "peak_rss_mib": peak_rss_mib},
        toolchain={**name, **(loaded_versions() if versions is None else versions)},
    )
    job.outputs["result"].write_text(text, encoding="utf-8")


class TargetNames(Protocol):
    """The names of a target, in an action or a job."""

    @property
    def target(self) -> str: ...  # noqa: D102
    @property
    def stage(self) -> str: ...  # noqa: D102
    @property
    def model(self) -> str: ...  # noqa: D102
    @property
    def variant(self) -> str: ...  # noqa: D102


def result_text(
    names: TargetNames,
    result: StageResult,
    *,
    started: str,
    measured: Mapping[str, float],
    toolchain: Mapping[str, str],
) -> str:
    """Return the content of a result file; ``started`` is ISO 8601.

    Raises: TypeError, ValueError: a figure is not JSON.
    """
    header = {
        "schema": RESULT_SCHEMA,
        "target": names.target,
        "stage": names.stage,
        "model": names.model,
        "variant": names.variant,
        "status": result.status,
        "reason": result.reason,
        "hint": result.hint,
        "started": started,
        **measured,
        "toolchain": toolchain,
    }
    return format_figures({**header, **result.figures})


def loaded_versions() -> dict[str, str]:
    """Return the versions of Python and of this process's libraries."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    versions = {name: str(version) for name, version in loaded.items() if version}
    return {"python": platform.python_version(), **versions}


def without_long_lists(figures: Any) -> Any:
    """Return ``figures`` without long lists. Raw samples stay in the result file."""

    def is_long(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and len(value) > _REPLY_ITEMS

    if isinstance(figures, Mapping):
        kept = {name: value for name, value in figures.items() if not is_long(value)}
        return {name: without_long_lists(value) for name, value in kept.items()}
    if isinstance(figures, (list, tuple)):
        return [without_long_lists(item) for item in figures]
    return _finite(figures)


def format_figures(figures: Mapping[str, Any]) -> str:
    """Return ``figures`` as indented JSON. A list of scalars takes one line.

    JSON has no NaN and no infinity: they become ``null``, which readers treat as unknown.
    """
    return "".join(_pieces(figures, "\n")) + "\n"


def _pieces(value: Any, newline: str) -> Iterator[str]:
    inner = newline + "  "
    if isinstance(value, Mapping) and value:
        for position, (name, member) in enumerate(value.items()):
            if not isinstance(name, (str, int)):
                raise TypeError(f"not the name of a figure: {name!r}")
            yield f"{',' if position else '{'}{inner}{json.dumps(str(name), ensure_ascii=False)}: "
            yield from _pieces(member, inner)
        yield newline + "}"
    elif isinstance(value, (list, tuple)) and not all(isinstance(item, _SCALARS) for item in value):
        for position, item in enumerate(value):
            yield f"{',' if position else '['}{inner}"
            yield from _pieces(item, inner)
        yield newline + "]"
    else:
        try:
            yield json.dumps(value, ensure_ascii=False, allow_nan=False)
        except ValueError:  # checked only now: a million samples are written at the speed of C
            several = isinstance(value, (list, tuple))
            finite = [_finite(item) for item in value] if several else _finite(value)
            yield json.dumps(finite, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
