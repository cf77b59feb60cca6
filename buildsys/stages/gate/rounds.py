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

from buildsys.backends.interface import OperatorUse, Options
from buildsys.backends.measurement.gpu import GpuTiming
from buildsys.onnx_graphs.tensors import load_case
from buildsys.stages.bench.remote_engine import RemoteEngine
from buildsys.system.interpreters.toolchain import Toolchain

Figures = dict[str, float]  # latency_s, p99_s, throughput_per_s, memory_bytes
_LEAST_RUNS = 10


@dataclass(frozen=True)
class TimedFile:
    """An engine file to time in separate processes."""

    engine: Path
    options: Options
    backend: str
    uses: tuple[OperatorUse, ...] = ()


@dataclass(frozen=True)
class Conditions:
    """The conditions of all processes."""

    toolchain: Toolchain
    case: Path
    timing: GpuTiming | None
    warmup_s: float
    duration_s: float
    project: Path
    folder: Path  # free of modules


def measure_rounds(
    sides: Mapping[str, TimedFile],
    conditions: Conditions,
    numbers: range,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, list[float]]]:
    """Return side -> figure -> values, a process per side and round.

    ``numbers`` are those of the rounds; the order of the sides alternates.

    Raises: Unavailable, StageError: a side cannot run.
    """
    found: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    for number in numbers:
        progress(f"round {number + 1} of {numbers.stop}")
        for name in list(sides)[:: -1 if number % 2 else 1]:
            for figure, value in measure_process(sides[name], conditions).items():
                found[name].setdefault(figure, []).append(value)
    return found


def measure_process(side: TimedFile, conditions: Conditions) -> Figures:
    """Return the figures of one fresh process with an engine."""
    engine = RemoteEngine(
        conditions.toolchain,
        side.backend,
        side.engine,
        side.options,
        side.uses,
        project=conditions.project,
        folder=conditions.folder,
    )
    with closing(engine):
        contender = next(iter(engine.bind(conditions.case, conditions.timing).values()))
        contender.block(conditions.warmup_s, 1)
        samples = contender.block(conditions.duration_s, _LEAST_RUNS)
        facts = engine.facts()
        memory = facts.get("memory_taken_bytes") or _peak_memory(engine.processes[0])
    times_ns = sorted(samples.gpu_ns or samples.wall_ns)
    first = next(iter(load_case(conditions.case).inputs.values()), None)
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
