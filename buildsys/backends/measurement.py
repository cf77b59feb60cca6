"""Interleaved timing of several contenders under equal conditions.

Clock speed, caches and neighbours change over seconds, so each contender gets a short block of
calls in turn, and the order is reversed every round. The first calls of a turn do not count: the
previous contender leaves cold caches and spinning threads.

On a GPU with one inference in flight, half of the time goes to lone inferences, each waited for:
the latency of a single request. The other half goes to queued inferences, each between two events:
the GPU's own time, without waits for the host. With several in flight both clocks time the same
inferences, which then share the GPU.

Source: TensorRT developer guide, "Performance Benchmarking using trtexec".
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from buildsys.errors import StageError

if TYPE_CHECKING:
    from buildsys.backends.cuda_device import Device, Event, Stream


Clock = Callable[[], int]
Count = Callable[[int, int, str], None]  # done, of how many (0: unknown), unit
_NS = 1_000_000_000


@dataclass
class Samples:
    """Measurements of one contender, in ns and in the order measured."""

    wall_ns: list[int] = field(default_factory=list)  # per inference, by the host's clock
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
    """Duration and block sizes of a measurement: minimums, times in seconds."""

    duration_s: float  # measured time per contender
    warmup_s: float  # per contender before the first turn
    min_samples: int
    block_s: float = 0.1  # counted time of one turn
    block_runs: int = 5  # counted calls of one turn
    settle_s: float = 0.05  # uncounted time at the start of a turn
    settle_runs: int = 2  # uncounted calls at the start of a turn
    limit_s: float = math.inf  # for all contenders; then min_samples are enough


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
        is_long = taken_ns >= pace.duration_s * _NS or time.monotonic() >= deadline
        return count >= pace.min_samples and is_long

    deadline = time.monotonic() + pace.limit_s
    blocks: dict[str, list[Samples]] = {name: [] for name in contenders}
    for name in contenders:
        run_block(name, pace.warmup_s, 1)
    order = list(contenders)
    while not all(map(is_enough, blocks.values())):
        for name in order:
            if len(order) > 1:
                run_block(name, pace.settle_s, pace.settle_runs)
            blocks[name].append(run_block(name, pace.block_s, pace.block_runs))
        taken = min(sum(len(block.wall_ns) for block in turns) for turns in blocks.values())
        count(taken, pace.min_samples if taken < pace.min_samples else 0, "samples")
        order.reverse()
    return blocks


ENGINE = "engine"  # contenders: the engine, launched kernel by kernel …
ENGINE_CUDA_GRAPH = "engine_cuda_graph"  # … and as one captured graph
Launch = Callable[[], object]
_QUEUE_LENGTH = 4  # inferences on the stream: with two, a fast enough host never lets the GPU wait


@dataclass(frozen=True)
class GpuTiming:
    """Options for timing an engine on a GPU."""

    cuda_graph: tuple[bool, ...] = (False,)  # one contender each
    transfers: str = "none"  # copies within the measured time: none, in, out or both
    in_flight: int = 1
    wait: str = "spin"  # or block


@dataclass
class Slot:
    """One inference in flight: its stream and its launching call."""

    stream: Stream
    launch: Launch
    started_ns: int = field(default=0, init=False)  # by the host's clock


class GpuContender:
    """Inferences on a GPU, one in flight per slot."""

    def __init__(self, device: Device, slots: Sequence[Slot], *, blocking: bool) -> None:
        """Use the slots; ``blocking`` sleeps while it waits instead of spinning."""
        self._device, self._slots = device, tuple(slots)
        pairs = _QUEUE_LENGTH if len(self._slots) == 1 else len(self._slots)
        with device.current():
            self._events = [
                (device.new_event(blocking=blocking), device.new_event(blocking=blocking))
                for _ in range(pairs)
            ]

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Run inferences without a break, at least this long and often."""
        with self._device.current():
            if len(self._slots) > 1:
                return self._time_queue(self._slots, at_least_s, at_least_runs)
            slot, (_, end) = self._slots[0], self._events[0]

            def run() -> None:
                slot.launch()
                end.record(slot.stream)
                end.wait()

            samples = LocalCall(run, time.perf_counter_ns).block(at_least_s / 2, at_least_runs)
            slots = [Slot(slot.stream, slot.launch) for _ in range(_QUEUE_LENGTH)]
            queued = self._time_queue(slots, at_least_s / 2, at_least_runs + 1)
            # the first inference found an idle stream
            samples.gpu_ns, samples.queued_ns = queued.gpu_ns[1:], queued.elapsed_ns
            return samples

    def close(self) -> None:
        """Free the events."""
        with self._device.current():
            for event in (event for pair in self._events for event in pair):
                self._device.free(event)
        self._events.clear()

    def _time_queue(self, slots: Sequence[Slot], at_least_s: float, at_least_runs: int) -> Samples:
        """Keep one inference per slot on its stream; time each by both clocks."""
        clock, samples = time.perf_counter_ns, Samples()
        running: deque[tuple[Slot, Event, Event]] = deque()
        idle = deque((slot, *pair) for slot, pair in zip(slots, self._events, strict=True))

        def finish_oldest() -> None:
            slot, begin, end = running.popleft()
            samples.gpu_ns.append(end.elapsed_ns(begin))
            samples.wall_ns.append(clock() - slot.started_ns)
            idle.append((slot, begin, end))

        first = clock()
        deadline = first + at_least_s * _NS
        while clock() < deadline or len(samples.wall_ns) + len(running) < at_least_runs:
            if not idle:
                finish_oldest()
            slot, begin, end = idle.popleft()
            slot.started_ns = clock()
            begin.record(slot.stream)
            slot.launch()
            end.record(slot.stream)
            running.append((slot, begin, end))
        while running:
            finish_oldest()
        samples.elapsed_ns = clock() - first
        return samples
