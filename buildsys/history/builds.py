"""Recorded builds and measurements, and their rows in the history."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from buildsys.store.state_db import Row

RAN, RESTORED = "ran", "restored"
HOST, GPU = "host", "gpu"  # clocks
_SHOWN_ID = 8  # characters


@dataclass(frozen=True)
class Build:
    """A finished run of one target."""

    id: str
    run: str  # the targets of one doit process share it
    project: str  # remote of git and folder in it: "host/acme/models//vision"; "" if unknown
    target: str
    model: str
    stage: str
    variant: str
    key: str
    how: str  # RAN | RESTORED
    status: str  # passed | unavailable | failed | error | noisy
    started: str  # ISO 8601, UTC
    position: float  # order on a machine: seconds since 1970, even if the clock is set back
    seconds: float  # taken by the stage when it ran
    reason: str = ""
    why: str = ""  # stale reasons, encoded by ``execution.stale_reasons``
    revision: str = ""  # commit; "" outside of git
    dirty: bool | None = None  # None: unknown
    machine: str = ""
    machine_id: str = ""
    environment: str = ""  # digest of a text: device:, tool: and env: parts of the key
    manifest: str = ""  # digest of a text: the resolved manifest of the model
    outputs: Mapping[str, str] = field(default_factory=dict)  # role -> content digest
    figures: Mapping[str, Any] = field(default_factory=dict)  # see ``figures.build_figures``

    @property
    def short_id(self) -> str:
        """The beginning of the id, as shown."""
        return self.id[:_SHOWN_ID]


@dataclass(frozen=True)
class Measurement:
    """A contender of a benchmark in one shape case, by one clock."""

    case: str
    contender: str
    clock: str  # HOST | GPU
    count: int  # samples
    p50_ms: float
    interval_ms: tuple[float, float] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    batch: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)  # p99_ms, throughput_per_s, …


COLUMNS = tuple(column.name for column in fields(Build))
MEASUREMENT_COLUMNS = (
    "case_name", "contender", "clock", "dims", "batch", "count", "p50_ms", "low_ms", "high_ms",
    "figures",
)  # fmt: skip
NUMBERS = ("position", "seconds")
_JSON = ("outputs", "figures")
TEXTS = tuple(name for name in COLUMNS if name not in (*NUMBERS, *_JSON, "dirty"))


def read_build(row: Row) -> Build | None:
    """Read a build from its row, None if the row is damaged."""
    values: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    dirty = values["dirty"]
    outputs, figures = (read_object(values[name]) for name in _JSON)
    if outputs is None or figures is None or dirty not in (None, 0, 1):
        return None
    texts = [*(values[name] for name in TEXTS), *outputs.values()]
    numbers = [values[name] for name in NUMBERS]
    if not all(isinstance(text, str) for text in texts):
        return None
    if not all(isinstance(number, float) and math.isfinite(number) for number in numbers):
        return None
    values |= {"outputs": outputs, "figures": figures}
    return Build(**{**values, "dirty": None if dirty is None else bool(dirty)})


def read_measurement(row: Row) -> Measurement | None:
    """Read a measurement from its row, None if the row is damaged."""
    case, contender, clock, dims_json, batch, count, p50_ms, low_ms, high_ms, figures_json = row
    dims, figures = read_object(dims_json), read_object(figures_json)
    texts = isinstance(case, str) and isinstance(contender, str) and clock in (HOST, GPU)
    if dims is None or figures is None or not texts or not isinstance(count, int):
        return None
    if not isinstance(p50_ms, float) or not math.isfinite(p50_ms):
        return None
    has_interval = isinstance(low_ms, float) and isinstance(high_ms, float)
    return Measurement(
        case,
        contender,
        clock,
        count,
        p50_ms,
        (low_ms, high_ms) if has_interval else None,
        dims,
        batch if isinstance(batch, int) else None,
        figures,
    )


def build_row(build: Build) -> tuple[Any, ...]:
    """Convert a build to the values of ``COLUMNS``."""
    values = {name: getattr(build, name) for name in COLUMNS}
    values |= {name: json.dumps(values[name], separators=(",", ":")) for name in _JSON}
    return (*(values | {name: float(values[name]) for name in NUMBERS}).values(),)


def measurement_row(measurement: Measurement) -> tuple[Any, ...]:
    """Convert a measurement to the values of ``MEASUREMENT_COLUMNS``."""
    low_ms, high_ms = measurement.interval_ms or (None, None)
    return (
        measurement.case, measurement.contender, measurement.clock,
        json.dumps(dict(measurement.dims)), measurement.batch, measurement.count,
        measurement.p50_ms, low_ms, high_ms, json.dumps(dict(measurement.figures)),
    )  # fmt: skip


def read_object(text: object) -> dict[str, Any] | None:
    """Parse a JSON object, None for anything else."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
