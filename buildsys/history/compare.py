"""Comparison of recorded builds: sizes, errors, build times and latencies."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from buildsys.history.builds import Build, Measurement
from buildsys.history.database import History
from buildsys.stages.bench.result import ENGINE, median_doubt
from buildsys.stages.table import stage_info

SLOWER, FASTER, SAME = "slower", "faster", "no clear difference"
INCOMPARABLE = "not comparable"
_COMPLETE = ("passed", "noisy")
_FAILED = ("failed", "error")
_COMPARED_DEVICES = ("cpu.model", "cpu.cores", "gpu.name", "gpu.compute_capability")


@dataclass(frozen=True)
class FigureChange:
    """A target's figure in two builds, None if not finite."""

    target: str
    figure: str
    first: float | None
    second: float | None


@dataclass(frozen=True)
class LatencyChange:
    """The median latency of one shape case in two builds."""

    target: str
    case: str
    contender: str
    clock: str
    first_ms: float
    second_ms: float
    first_interval_ms: tuple[float, float] | None
    second_interval_ms: tuple[float, float] | None
    verdict: str  # SLOWER, FASTER, SAME or INCOMPARABLE
    reason: str = ""  # why they are not comparable
    noisy: bool = False  # one of the medians is not steady

    @property
    def ratio(self) -> float | None:
        """The second median over the first, if they are comparable."""
        return None if self.verdict == INCOMPARABLE else self.second_ms / self.first_ms

    @property
    def ratio_interval(self) -> tuple[float, float] | None:
        """The ratios of opposite ends of both intervals."""
        if self.verdict == INCOMPARABLE or not (self.first_interval_ms and self.second_interval_ms):
            return None
        (low, high), (other_low, other_high) = self.first_interval_ms, self.second_interval_ms
        return other_low / high, other_high / low


def builds_at(builds: Iterable[Build], moment: Build) -> dict[str, Build]:
    """Find each target's last complete build on a machine by then. ``builds`` are newest first."""
    last: dict[str, Build] = {}
    for build in builds:
        is_earlier = build.machine_id == moment.machine_id and build.position <= moment.position
        if is_earlier and build.status in _COMPLETE:
            last.setdefault(build.target, build)
    return last


def failures_at(builds: Iterable[Build], moment: Build) -> dict[str, Build]:
    """Find the targets that failed in the run of a build. A repair may need no build."""
    return {b.target: b for b in builds if b.run == moment.run and b.status in _FAILED}


def compare_figures(pairs: Sequence[tuple[Build, Build]]) -> list[FigureChange]:
    """List sizes, errors and build times of pairs, changed or not."""
    return [
        FigureChange(second.target, name, first.figures[name], second.figures[name])
        for first, second in pairs
        for name in stage_info(second.stage).compared
        if name in first.figures and name in second.figures
    ]


def machine_differences(first: Mapping[str, str], second: Mapping[str, str]) -> tuple[str, ...]:
    """List obstacles to comparing figures of two environments.

    Only hardware counts. Drivers and libraries are causes of a change, not obstacles.
    """
    pairs = [(n, first.get(f"device:{n}"), second.get(f"device:{n}")) for n in _COMPARED_DEVICES]
    return tuple(
        f"{name} is {before} and {after}"
        for name, before, after in pairs
        if None not in (before, after) and before != after
    )


def compare_latencies(history: History, first: Build, second: Build) -> list[LatencyChange]:
    """Compare the latencies of two benchmarks of engines."""
    obstacles = machine_differences(history.environment(first), history.environment(second))
    if not history.environment(first) or not history.environment(second):
        obstacles = ("the environment of a build is not recorded",)
    changes = []
    others = {_place(m): m for m in _of_engine(history.measurements(second))}
    for before in _of_engine(history.measurements(first)):
        after = others.get(_place(before))
        if after is None or before.p50_ms <= 0:
            continue
        noisy = _is_noisy(first, before) or _is_noisy(second, after)
        reasons = [*obstacles, *(["a measurement is noisy"] if noisy else [])]
        if before.dims != after.dims:
            reasons.append(f"sizes are {_sizes(before.dims)} and {_sizes(after.dims)}")
        verdict, intervals = INCOMPARABLE, (before.interval_ms, after.interval_ms)
        match intervals:
            case (low, high), (other_low, other_high):
                if not reasons:
                    verdict = SLOWER if other_low > high else FASTER if other_high < low else SAME
            case _:
                reasons.append("a median has no interval")
        place, medians = (second.target, *_place(before)), (before.p50_ms, after.p50_ms)
        reason = "; ".join(reasons)
        changes.append(LatencyChange(*place, *medians, *intervals, verdict, reason, noisy))
    return changes


def _of_engine(measurements: Iterable[Measurement]) -> Iterator[Measurement]:
    return (m for m in measurements if m.contender.startswith(ENGINE))


def _place(measurement: Measurement) -> tuple[str, str, str]:
    return measurement.case, measurement.contender, measurement.clock


def _is_noisy(build: Build, measured: Measurement) -> bool:
    ends = measured.interval_ms
    return bool(build.figures.get("noisy") or (ends and median_doubt(measured.p50_ms, ends)))


def _sizes(dims: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in dims.items()) or "fixed"
