"""Interleaved timing of several contenders under equal conditions.

Clock speed, caches and neighbours change over seconds; contenders that are timed one after the
other meet different ones. Here each gets a short block of calls, and the order is reversed every
round. The first calls of a turn do not count: the previous contender leaves cold caches and threads
that still spin while they wait for work. Measured with ResNet-18 on two cores: PyTorch's first call
after ONNX Runtime took 2.2 times as long as its later ones with spinning threads and 1.0 times
without, ONNX Runtime's first call after PyTorch 1.3 and 1.2 times; from the third call on, neither
was disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from buildsys.errors import StageError

Clock = Callable[[], int]
Count = Callable[[int, int, str], None]  # done, of how many (0: unknown), unit
_NS = 1_000_000_000


@dataclass
class Samples:
    """Measurements of one contender, in ns and in the order measured.

    On a GPU, lone inferences give the host's time and queued inferences the GPU's: the GPU time of
    a lone inference would include the wait for the host to launch it.
    """

    wall_ns: list[int] = field(default_factory=list)  # of each inference, by the host's clock
    elapsed_ns: int = 0  # total time of the inferences in wall_ns
    gpu_ns: list[int] = field(default_factory=list)  # by the GPU's clock; empty on a CPU
    queued_ns: int = 0  # total time of the inferences in gpu_ns if they are not those in wall_ns

    def add(self, later: Samples) -> None:
        """Append later measurements."""
        self.wall_ns += later.wall_ns
        self.elapsed_ns += later.elapsed_ns
        self.gpu_ns += later.gpu_ns
        self.queued_ns += later.queued_ns

    @classmethod
    def joined(cls, blocks: Iterable[Samples]) -> Samples:
        """Return the samples of several blocks as one."""
        whole = cls()
        for block in blocks:
            whole.add(block)
        return whole


class Contender(Protocol):
    """A subject of timing, in this process or another."""

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Run inferences without a break, at least this long and often."""
        ...


@dataclass(frozen=True)
class Pace:
    """Duration and block sizes of a measurement.

    Times in seconds, all of them minimums.
    """

    duration_s: float  # measured time per contender
    warmup_s: float  # per contender before the first turn
    min_samples: int
    block_s: float = 0.1  # counted time of one turn
    block_runs: int = 5  # counted calls of one turn
    settle_s: float = 0.05  # uncounted time at the start of a turn
    settle_runs: int = 2  # uncounted calls at the start of a turn


@dataclass(frozen=True)
class LocalCall:
    """A contender in this process: a function call."""

    call: Callable[[], object]  # returns after its work is complete
    clock: Clock = time.perf_counter_ns

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Call repeatedly; return the duration of every call."""
        call, clock = self.call, self.clock
        times: list[int] = []
        end = clock() + at_least_s * _NS
        while True:
            start = clock()
            call()
            stop = clock()
            times.append(stop - start)
            if stop >= end and len(times) >= at_least_runs:
                return Samples(times, sum(times))


def measure(
    contenders: Mapping[str, Contender], pace: Pace, count: Count = lambda *_: None
) -> dict[str, list[Samples]]:
    """Return the counted blocks of every contender, equally many of each.

    ``count`` gets the samples of the slowest contender between two rounds, never during one.
    Raises: StageError: a contender failed; names it.
    """

    def run_block(name: str, at_least_s: float, at_least_runs: int) -> Samples:
        try:
            return contenders[name].block(at_least_s, at_least_runs)
        except StageError as failure:
            raise StageError(f"timing {name} failed: {failure.problem}", failure.hint) from failure

    def is_enough(blocks: Sequence[Samples]) -> bool:
        count = sum(len(block.wall_ns) for block in blocks)
        taken_ns = sum(block.elapsed_ns + block.queued_ns for block in blocks)
        return count >= pace.min_samples and taken_ns >= pace.duration_s * _NS

    blocks: dict[str, list[Samples]] = {name: [] for name in contenders}
    for name in contenders:
        run_block(name, pace.warmup_s, 1)
    order = list(contenders)
    while not all(map(is_enough, blocks.values())):
        for name in order:
            if len(order) > 1:
                run_block(name, pace.settle_s, pace.settle_runs)
            blocks[name].append(run_block(name, pace.block_s, pace.block_runs))
        taken = min(sum(len(block.wall_ns) for block in found) for found in blocks.values())
        count(taken, pace.min_samples if taken < pace.min_samples else 0, "samples")
        order.reverse()
    return blocks
