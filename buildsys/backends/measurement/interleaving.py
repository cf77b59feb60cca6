"""Time several contenders in turns, so that all of them meet the same machine.

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
from dataclasses import dataclass, field
from typing import Protocol

from buildsys.errors import StageError

Clock = Callable[[], int]
_NS = 1_000_000_000


@dataclass
class Samples:
    """What was measured of a contender, in ns and in the order measured.

    On a GPU some inferences are made one after the other for the host's time of each, and others queued one behind the
    other for the GPU's: a GPU that waits for the host to launch would be timed with that wait.
    """

    wall_ns: list[int] = field(default_factory=list)  # of each inference, by the host's clock
    elapsed_ns: int = 0  # in which all of wall_ns were made
    gpu_ns: list[int] = field(
        default_factory=list
    )  # of each inference, by the GPU's clock; none on a CPU
    queued_ns: int = (
        0  # in which those of gpu_ns were made, where they are others than those of wall_ns
    )

    def add(self, other: Samples) -> None:
        """Take over what was measured later."""
        self.wall_ns += other.wall_ns
        self.elapsed_ns += other.elapsed_ns
        self.gpu_ns += other.gpu_ns
        self.queued_ns += other.queued_ns

    @property
    def measured_ns(self) -> int:
        """Return how long was measured."""
        return self.elapsed_ns + self.queued_ns


class Contender(Protocol):
    """What is timed, in this process or in another."""

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Make inferences without a break for so long, and so many; return what they took."""
        ...


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


class LocalCall:
    """A call in this process that returns when its work is done."""

    def __init__(self, call: Callable[[], object], clock: Clock = time.perf_counter_ns) -> None:
        self._call = call
        self._clock = clock

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Call again and again; return the duration of every call."""
        call, clock = self._call, self._clock
        taken: list[int] = []
        end = clock() + at_least_s * _NS
        while True:
            start = clock()
            call()
            stop = clock()
            taken.append(stop - start)
            if stop >= end and len(taken) >= at_least_runs:
                return Samples(taken, sum(taken))


def measure(contenders: Mapping[str, Contender], pace: Pace) -> dict[str, Samples]:
    """Return what was measured of every contender, without what does not count.

    Raises: StageError: the work of one has failed; says of which.
    """
    samples = {name: Samples() for name in contenders}
    for name, contender in contenders.items():
        _block(name, contender, pace.warmup_s, 1)
    order = list(contenders)
    while not all(_is_enough(taken, pace) for taken in samples.values()):
        for name in order:
            if len(order) > 1:
                _block(name, contenders[name], pace.settle_s, pace.settle_runs)
            samples[name].add(_block(name, contenders[name], pace.block_s, pace.block_runs))
        order.reverse()
    return samples


def _block(name: str, contender: Contender, at_least_s: float, at_least_runs: int) -> Samples:
    try:
        return contender.block(at_least_s, at_least_runs)
    except StageError as failure:
        raise StageError(f"timing {name} failed: {failure.problem}", failure.hint) from failure


def _is_enough(taken: Samples, pace: Pace) -> bool:
    return len(taken.wall_ns) >= pace.min_samples and taken.measured_ns >= pace.duration_s * _NS
