"""The result file of a target: the common header, then its stage's figures. Strict JSON that reads well."""

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
    "ml_dtypes",
    "modelopt",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "onnxsim",
    "onnxslim",
    "tensorrt",
    "tensorrt_rtx",
    "torch",
    "torchvision",
)
_ANSWERED_ITEMS = 16
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
    """Write the file that ``job`` names as its output ``result``. ``versions``: of what ran it, where not this process.

    Raises: TypeError, ValueError: a figure is not JSON; nothing is written.
    """
    text = result_text(
        job,
        result,
        started=started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        measured={"seconds": seconds, "peak_rss_mib": peak_rss_mib},
        toolchain={**_toolchain_name(job), **(loaded_versions() if versions is None else versions)},
    )
    job.outputs["result"].write_text(text, encoding="utf-8")


class Named(Protocol):
    """What has the names of a target: an action or its job."""

    @property
    def target(self) -> str: ...  # noqa: D102
    @property
    def stage(self) -> str: ...  # noqa: D102
    @property
    def model(self) -> str: ...  # noqa: D102
    @property
    def variant(self) -> str: ...  # noqa: D102


def result_text(
    of: Named,
    result: StageResult,
    *,
    started: str,
    measured: Mapping[str, float],
    toolchain: Mapping[str, str],
) -> str:
    """Return the content of a result file. ``started`` is ISO 8601. Raises: TypeError, ValueError: as above."""
    header = {
        "schema": RESULT_SCHEMA,
        "target": of.target,
        "stage": of.stage,
        "model": of.model,
        "variant": of.variant,
        "status": result.status,
        "reason": result.reason,
        "hint": result.hint,
        "started": started,
        **measured,
        "toolchain": toolchain,
    }
    return as_text({**header, **result.figures})


def as_text(figures: Mapping[str, Any]) -> str:
    """Return ``figures`` as indented JSON in which a list of numbers or words is one line.

    JSON has no NaN and no infinity: they become ``null``, which readers take for "not known".
    """
    return "".join(_pieces(figures, "\n")) + "\n"


def without_long_lists(figures: Any) -> Any:
    """Return ``figures`` as they go to the orchestrator: long lists (raw samples) stay in the result file."""
    if isinstance(figures, Mapping):
        kept = {name: value for name, value in figures.items() if not _is_long(value)}
        return {name: without_long_lists(value) for name, value in kept.items()}
    if isinstance(figures, (list, tuple)):
        return [without_long_lists(item) for item in figures]
    return _finite(figures)


def loaded_versions() -> dict[str, str]:
    """Return the version of Python and of each library that this process has loaded."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    return {
        "python": platform.python_version(),
        **{name: str(found) for name, found in loaded.items() if found},
    }


def _toolchain_name(job: Job) -> dict[str, str]:
    toolchain = toolchain_of(job)
    return {"name": toolchain.name} if toolchain is not None else {}


def _pieces(value: Any, newline: str) -> Iterator[str]:
    inner = newline + "  "
    if isinstance(value, Mapping) and value:
        for position, (name, member) in enumerate(value.items()):
            yield f"{',' if position else '{'}{inner}{_name(name)}: "
            yield from _pieces(member, inner)
        yield newline + "}"
    elif isinstance(value, (list, tuple)) and not all(isinstance(item, _SCALARS) for item in value):
        for position, item in enumerate(value):
            yield f"{',' if position else '['}{inner}"
            yield from _pieces(item, inner)
        yield newline + "]"
    else:
        yield _line(value)


def _name(name: Any) -> str:
    if not isinstance(name, (str, int)):
        raise TypeError(f"not the name of a figure: {name!r}")
    return json.dumps(str(name), ensure_ascii=False)


def _line(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # asked only now: a million samples are written at the speed of C
        finite = (
            [_finite(item) for item in value]
            if isinstance(value, (list, tuple))
            else _finite(value)
        )
        return json.dumps(finite, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_long(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > _ANSWERED_ITEMS
