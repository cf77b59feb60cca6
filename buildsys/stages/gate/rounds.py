"""Rounds of fresh processes: both sides of a comparison, in ABBA order.

Processes differ by more than calls of one process: their memory is laid out in another way, and
clocks and neighbors change meanwhile. Alternating the order cancels drift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from buildsys.backends.measurement import GpuTiming
from buildsys.onnx_graphs.tensors import load_case
from buildsys.stages.bench.remote_engine import RemoteEngine

OpenEngine = Callable[[], RemoteEngine]  # starts a process with the engine of one side
Rounds = dict[str, dict[str, list[float]]]  # side -> figure -> one value per round
_LEAST_RUNS = 10


@dataclass(frozen=True)
class Pace:
    """What every process runs, and for how long."""

    case: Path
    timing: GpuTiming | None
    warmup_s: float
    duration_s: float


def measure_rounds(
    sides: Mapping[str, OpenEngine],
    pace: Pace,
    numbers: range,
    progress: Callable[[str], None] = lambda _: None,
) -> Rounds:
    """Measure each side in a process per round; the order of the sides alternates.

    Raises: Unavailable, StageError: a side cannot run.
    """
    rounds: Rounds = {name: {} for name in sides}
    for number in numbers:
        progress(f"round {number + 1} of {numbers.stop}")
        for name in list(sides)[:: -1 if number % 2 else 1]:
            for figure, value in measure_process(sides[name], pace).items():
                rounds[name].setdefault(figure, []).append(value)
    return rounds


def measure_process(open_engine: OpenEngine, pace: Pace) -> dict[str, float]:
    """Measure an engine in a fresh process: seconds, items per second and bytes."""
    with closing(open_engine()) as engine:
        contender = next(iter(engine.bind(pace.case, pace.timing).values()))
        contender.block(pace.warmup_s, 1)
        samples = contender.block(pace.duration_s, _LEAST_RUNS)
        facts = engine.facts()
        memory = facts.get("memory_taken_bytes") or _peak_memory(engine.processes[0])
    times_ns = sorted(samples.gpu_ns or samples.wall_ns)
    first = next(iter(load_case(pace.case).inputs.values()), None)
    batch = first.shape[0] if first is not None and first.shape else 1
    figures = {
        "latency": median(times_ns) / 1e9,
        "p99": times_ns[min(len(times_ns) - 1, len(times_ns) * 99 // 100)] / 1e9,
        "throughput": batch * len(samples.wall_ns) * 1e9 / samples.elapsed_ns,
    }
    return figures if memory is None else {**figures, "memory": float(memory)}


def _peak_memory(pid: int) -> int | None:
    """Return a process's peak resident memory in bytes, None if unknown."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    values: list[Any] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(values[0]) * 1024 if values else None
