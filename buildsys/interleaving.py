"""Time several contenders in one process, in turns, so that all of them meet the same machine.

Clock speed, caches and neighbours change over seconds; contenders that are timed one after the other
meet different ones. Here each gets a short block of calls, and the order is reversed every round. The
first calls of a turn do not count: the contender before leaves cold caches and threads that still spin
while they wait for work. Measured with ResNet-18 on two cores: PyTorch's first call after ONNX Runtime
took 2.2 times as long as its later ones with spinning threads and 1.0 times without, ONNX Runtime's first
call after PyTorch 1.3 and 1.2 times; from the third call on, neither was disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Clock = Callable[[], int]
_NS = 1_000_000_000


@dataclass(frozen=True)
class Pace:
    """How long to measure, and in what turns. Times in seconds."""

    duration_s: float  # measured time per contender, at least
    warmup_s: float  # time per contender before the first turn
    min_samples: int
    block_s: float = 0.1  # counted time of one turn, at least
    block_runs: int = 5  # counted calls of one turn, at least
    settle_s: float = 0.05  # time at the start of a turn that does not count, at least
    settle_runs: int = 2  # calls at the start of a turn that do not count, at least


def measure(
    contenders: Mapping[str, Callable[[], object]], pace: Pace, clock: Clock = time.perf_counter_ns
) -> dict[str, list[int]]:
    """Return the duration of every counted call in ns, per contender in the order measured."""
    samples: dict[str, list[int]] = {name: [] for name in contenders}
    for call in contenders.values():
        _repeat(call, pace.warmup_s, 1, clock)
    order = list(contenders)
    while not all(_is_enough(taken, pace) for taken in samples.values()):
        for name in order:
            if len(order) > 1:
                _repeat(contenders[name], pace.settle_s, pace.settle_runs, clock)
            samples[name] += _repeat(contenders[name], pace.block_s, pace.block_runs, clock)
        order.reverse()
    return samples


def _is_enough(taken: list[int], pace: Pace) -> bool:
    return len(taken) >= pace.min_samples and sum(taken) >= pace.duration_s * _NS


def _repeat(call: Callable[[], object], at_least_s: float, at_least_runs: int, clock: Clock) -> list[int]:
    taken: list[int] = []
    end = clock() + at_least_s * _NS
    while True:
        start = clock()
        call()
        stop = clock()
        taken.append(stop - start)
        if stop >= end and len(taken) >= at_least_runs:
            return taken
