"""Recorded builds and measurements, and their rows in the history."""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from buildsys.store.state_db import Row

RAN, RESTORED = "ran", "restored"
HOST, GPU = "host", "gpu"  # clocks
KEEP_SAMPLES = 4096  # per measurement, evenly spaced over its duration
_SHOWN_ID = 8  # characters
T = TypeVar("T")


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
    seconds: float  # of the stage, when it ran
    reason: str = ""  # of a failure
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
    count: int  # samples measured; fewer are kept
    p50_ms: float
    interval_ms: tuple[float, float] | None = None  # of the median
    dims: Mapping[str, int] = field(default_factory=dict)
    batch: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)  # p99_ms, throughput_per_s, …
    samples_ms: Sequence[float] = ()  # in the order measured


class BuildSummary(NamedTuple):
    """The fields of a build for a trend: a page of a thousand reads a hundred of them."""

    run: str
    status: str
    started: str
    why: str
    revision: str
    machine_id: str
    environment: str
    dirty: bool | None
    figures: Mapping[str, Any]


COLUMNS = tuple(one.name for one in fields(Build))
BUILD_COLUMNS = ", ".join(COLUMNS)
_JSON_COLUMNS = ("outputs", "figures")
_NUMBERS = ("position", "seconds")
_NOT_TEXT = (*_JSON_COLUMNS, *_NUMBERS, "dirty")
_json_of = itemgetter(*map(COLUMNS.index, _JSON_COLUMNS))  # of a row
_numbers_of = itemgetter(*map(COLUMNS.index, _NUMBERS))
_texts_of = itemgetter(*(n for n, name in enumerate(COLUMNS) if name not in _NOT_TEXT))
MEASUREMENT_COLUMNS = (
    "case_name, contender, clock, dims, batch, count, p50_ms, low_ms, high_ms, figures, stored"
)


def evenly_spaced(samples: Sequence[T], most: int) -> Sequence[T]:
    """Return at most ``most`` samples, evenly spread and in order."""
    count = len(samples)
    if count <= most:
        return samples
    return [samples[(2 * n + 1) * count // (2 * most)] for n in range(most)]


def read_build(row: Row) -> Build | None:
    """Return the build in a row, None if the row is damaged."""
    found: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    outputs, figures = map(read_object, _json_of(row))
    dirty, numbers = found["dirty"], _numbers_of(row)
    if (
        outputs is None
        or figures is None
        or {*map(type, _texts_of(row)), *map(type, outputs.values())} != {str}
        or {*map(type, numbers)} != {float}
        or not all(map(math.isfinite, numbers))
        or dirty not in (None, 0, 1)
    ):
        return None
    found |= {"outputs": outputs, "figures": figures}
    found["dirty"] = None if dirty is None else bool(dirty)
    return Build(**found)


def read_summary(row: Row) -> BuildSummary | None:
    """Return the summary in a row, None if the row is damaged."""
    *texts, dirty, text = row
    figures = read_object(text)
    if figures is None or {*map(type, texts)} != {str} or dirty not in (None, 0, 1):
        return None
    return BuildSummary._make((*texts, None if dirty is None else bool(dirty), figures))


def read_measurement(row: Row) -> Measurement | None:
    """Return the measurement in a row, None if the row is damaged."""
    case, contender, clock, dims, batch, count, p50_ms, low_ms, high_ms, figures, _, packed = row
    own_dims, own_figures = read_object(dims), read_object(figures)
    texts = isinstance(case, str) and isinstance(contender, str) and clock in (HOST, GPU)
    if own_dims is None or own_figures is None or not texts or not isinstance(count, int):
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
        own_dims,
        batch if isinstance(batch, int) else None,
        own_figures,
        unpack_samples(packed),
    )


def build_row(build: Build) -> list[tuple[str, Any]]:
    """Return column and value of a build."""
    own = {name: getattr(build, name) for name in COLUMNS}
    own |= {name: json.dumps(own[name], separators=(",", ":")) for name in _JSON_COLUMNS}
    own |= {name: float(own[name]) for name in _NUMBERS}
    return list(own.items())


def measurement_row(one: Measurement) -> tuple[Any, ...]:
    """Return the columns of a measurement, and its samples."""
    low_ms, high_ms = one.interval_ms or (None, None)
    kept = evenly_spaced([s for s in one.samples_ms if math.isfinite(s)], KEEP_SAMPLES)
    return (
        one.case, one.contender, one.clock, json.dumps(dict(one.dims)), one.batch, one.count,
        one.p50_ms, low_ms, high_ms, json.dumps(dict(one.figures)), len(kept),
        pack_samples(kept),
    )  # fmt: skip


def pack_samples(samples: Sequence[float]) -> bytes:
    """Return samples as compressed little-endian float32."""
    values = array("f", samples)
    if sys.byteorder == "big":
        values.byteswap()
    return zlib.compress(values.tobytes())


def unpack_samples(packed: Any) -> Sequence[float]:
    """Return the finite samples in a blob, () if it is damaged."""
    values = array("f")
    try:
        unpacker = zlib.decompressobj()
        values.frombytes(unpacker.decompress(packed or b"", values.itemsize * KEEP_SAMPLES))
    except (zlib.error, TypeError, ValueError):
        return ()
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(value for value in values if math.isfinite(value))


def read_object(text: object) -> dict[str, Any] | None:
    """Return a JSON object, None for anything else."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
