"""The ranking of a model's engines, a part of the report.

None stands for a value that is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LATENCY, THROUGHPUT, SIZE, ERROR = MEASURES = ("latency", "throughput", "size", "error")


@dataclass(frozen=True)
class RankedEngine:
    """A verified engine with its figures in the case of the ranking."""

    engine: str
    backend: str
    precision: str
    rank: int  # shared by engines that are not distinguishable
    p50_ms: float | None
    p50_interval_ms: tuple[float, ...] | None
    throughput_per_s: float | None
    size_bytes: int | None
    error: float | None  # the largest relative error in `verify`
    contender: str = ""  # engine or engine_cuda_graph; "" without a benchmark
    is_optimal: bool = False  # Pareto-optimal in latency, error and size


@dataclass(frozen=True)
class UnrankedEngine:
    """An engine without a place, and the reason."""

    engine: str
    status: str  # of the target that decides
    reason: str


@dataclass(frozen=True)
class Ranking:
    """The engines of a model, the one to ship first."""

    by: str  # latency | throughput | size | error
    case: str = ""  # "" if no benchmark counts
    dims: str = ""
    ranked: tuple[RankedEngine, ...] = ()
    unranked: tuple[UnrankedEngine, ...] = ()
    within: float | None = None  # the largest permitted relative error
    verified: int = 0  # engines, ranked or not
    other_cases: Mapping[str, str] = field(default_factory=dict)  # case -> its first, if another

    @property
    def tied(self) -> tuple[RankedEngine, ...]:
        """The engines not distinguishable from the first."""
        return tuple(one for one in self.ranked[1:] if one.rank == self.ranked[0].rank)
