"""Recorded builds and measurements, their figures, and their rows in the history."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from buildsys.report.key_figures import result_type, stage_report
from buildsys.report.result_files import adapter, parse, read_content
from buildsys.stages.bench.result import BenchResult, ContenderResult, recorded_interval
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
    figures: Mapping[str, Any] = field(default_factory=dict)  # see ``build_figures``

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
_JSON = ("outputs", "figures")


def read_build(row: Row) -> Build | None:
    """Read a build from its row, None if the row is damaged."""
    build: Build | None = _valid(Build, dict(zip(COLUMNS, row, strict=True)), _JSON)
    return build


def read_measurement(row: Row) -> Measurement | None:
    """Read a measurement from its row, None if the row is damaged."""
    values = dict(zip(MEASUREMENT_COLUMNS, row, strict=True))
    ends, case = (values.pop("low_ms"), values.pop("high_ms")), values.pop("case_name")
    more = {"case": case, "interval_ms": None if None in ends else ends}
    measurement: Measurement | None = _valid(Measurement, values, ("dims", "figures"), **more)
    return measurement


def _valid(kind: Any, values: dict[str, Any], objects: Sequence[str], **more: Any) -> Any:
    """Make a build or measurement of values, None if one has a wrong type."""
    try:
        parsed = {name: json.loads(values[name]) for name in objects}
        return adapter(kind).validate_python({**values, **parsed, **more})
    except (ValueError, TypeError, RecursionError):
        return None


def build_row(build: Build) -> tuple[Any, ...]:
    """Convert a build to the values of ``COLUMNS``."""
    values = {name: getattr(build, name) for name in COLUMNS}
    values |= {name: json.dumps(values[name], separators=(",", ":")) for name in _JSON}
    return tuple(values.values())


def measurement_row(measurement: Measurement) -> tuple[Any, ...]:
    """Convert a measurement to the values of ``MEASUREMENT_COLUMNS``."""
    low_ms, high_ms = measurement.interval_ms or (None, None)
    return (
        measurement.case, measurement.contender, measurement.clock,
        json.dumps(dict(measurement.dims)), measurement.batch, measurement.count,
        measurement.p50_ms, low_ms, high_ms, json.dumps(dict(measurement.figures)),
    )  # fmt: skip


_RELATIVE = "relative"  # error of a check; None: not finite
_LATENCIES = (
    "p90_ms", "p95_ms", "p99_ms", "mean_ms", "min_ms", "max_ms", "variation", "throughput_per_s",
)  # fmt: skip
Figures = dict[str, Any]


def build_figures(stage: str, result: Mapping[str, Any]) -> Figures:
    """Collect the figures of a result, as far as it has them."""
    figures: Figures = {"peak_rss_mib": result.get("peak_rss_mib")}
    if collect := stage_report(stage, "history_figures"):
        figures |= collect(parse(result, result_type(stage)))
    return {n: value for n, value in figures.items() if value is not None or n == _RELATIVE}


def read_measurements(file: Path) -> list[Measurement]:
    """Read the measurements from the result file of a benchmark.

    Raises: OSError, ValueError: it cannot be read.
    """
    return [
        Measurement(
            case,
            name,
            clock,
            latencies.get("count", len(latencies.get("samples_ms", []))),
            p50_ms,
            recorded_interval(latencies),
            figures.get("dims", {}),
            figures.get("batch"),
            {name: value for name in _LATENCIES if (value := latencies.get(name)) is not None},
        )
        for case, figures in read_content(file, BenchResult).get("cases", {}).items()
        for name, contender in figures.get("contenders", {}).items()
        for clock, latencies in _clocks(contender)
        if (p50_ms := latencies.get("p50_ms")) is not None and math.isfinite(p50_ms)
    ]


def _clocks(contender: ContenderResult) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield HOST, contender
    if "gpu" in contender:
        yield GPU, contender["gpu"]
