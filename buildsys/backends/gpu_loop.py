"""Time what is put on the streams of a GPU: by the host's clock from launch to completion, and by the GPU's own.

With one inference in flight, half of the time goes to inferences one at a time, each waited for: what a lone request
takes. The other half goes to inferences queued one behind the other, each between two events: what the GPU takes. Between
the events of a lone inference the GPU also waits for the host to launch its first kernel; measured on an H200, see
docs/benchmarks.md. With several in flight both clocks time the same inferences, which then share the GPU.

Source: TensorRT developer guide, "Performance Benchmarking using trtexec" (its GPU compute time is that of queued inferences).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from buildsys.backends.cuda_driver import Device, Event, Stream
from buildsys.interleaving import Samples

Launch = Callable[[], object]
_NS = 1_000_000_000
_QUEUED = 4  # inferences on the stream at a time: with two the GPU never waits for a host that is fast enough


@dataclass
class Slot:
    """One inference in flight: its stream, and the call that puts it there."""

    stream: Stream
    launch: Launch
    started_ns: int = field(default=0, init=False)  # by the host's clock


class GpuContender:
    """Inferences on a GPU, as many in flight as there are slots."""

    def __init__(self, device: Device, slots: Sequence[Slot], *, blocking: bool) -> None:
        """Take over the slots; ``blocking`` waits asleep instead of spinning."""
        self._device = device
        self._slots = tuple(slots)
        pairs = _QUEUED if len(self._slots) == 1 else len(self._slots)
        with device.current():
            self._events = [
                (device.new_event(blocking=blocking), device.new_event(blocking=blocking)) for _ in range(pairs)
            ]

    def block(self, at_least_s: float, at_least_runs: int) -> Samples:
        """Make inferences without a break for so long, and so many; return what they took."""
        with self._device.current():
            if len(self._slots) > 1:
                return self._in_flight(at_least_s, at_least_runs)
            samples = self._one_at_a_time(at_least_s / 2, at_least_runs)
            samples.add(self._queued(at_least_s / 2, at_least_runs))
            return samples

    def close(self) -> None:
        """Give back the events."""
        with self._device.current():
            for event in (event for pair in self._events for event in pair):
                self._device.free(event)
        self._events.clear()

    def _one_at_a_time(self, at_least_s: float, at_least_runs: int) -> Samples:
        slot, clock = self._slots[0], time.perf_counter_ns
        launch, stream, (_, end) = slot.launch, slot.stream, self._events[0]
        taken: list[int] = []
        begun = clock()
        deadline = begun + at_least_s * _NS
        while True:
            start = clock()
            launch()
            end.record(stream)
            end.wait()
            stop = clock()
            taken.append(stop - start)
            if stop >= deadline and len(taken) >= at_least_runs:
                return Samples(taken, stop - begun)

    def _queued(self, at_least_s: float, at_least_runs: int) -> Samples:
        slot, clock = self._slots[0], time.perf_counter_ns
        launch, stream = slot.launch, slot.stream
        taken: list[int] = []
        waiting: deque[tuple[Event, Event]] = deque()
        begun = clock()
        deadline = begun + at_least_s * _NS
        number = 0
        while clock() < deadline or number <= at_least_runs:  # one more: the first does not count
            if len(waiting) == len(self._events):
                taken.append(_passed(*waiting.popleft()))
            begin, end = self._events[number % len(self._events)]
            begin.record(stream)
            launch()
            end.record(stream)
            waiting.append((begin, end))
            number += 1
        taken += [_passed(*pair) for pair in waiting]
        return Samples(gpu_ns=taken[1:], queued_ns=clock() - begun)  # the first found an idle stream

    def _in_flight(self, at_least_s: float, at_least_runs: int) -> Samples:
        clock, samples = time.perf_counter_ns, Samples()
        flying: deque[tuple[Slot, Event, Event]] = deque()
        resting = deque((slot, *pair) for slot, pair in zip(self._slots, self._events, strict=True))
        begun = clock()
        deadline = begun + at_least_s * _NS
        while clock() < deadline or len(samples.wall_ns) + len(flying) < at_least_runs:
            if not resting:
                resting.append(_land(flying.popleft(), samples))
            slot, begin, end = resting.popleft()
            slot.started_ns = clock()
            begin.record(slot.stream)
            slot.launch()
            end.record(slot.stream)
            flying.append((slot, begin, end))
        while flying:
            _land(flying.popleft(), samples)
        samples.elapsed_ns = clock() - begun
        return samples


def _passed(begin: Event, end: Event) -> int:
    """Wait for an inference, and return the GPU's time between its events."""
    end.wait()
    return end.elapsed_ns(begin)


def _land(flight: tuple[Slot, Event, Event], samples: Samples) -> tuple[Slot, Event, Event]:
    """Wait for the inference that has been in flight longest, and note both its times."""
    slot, begin, end = flight
    samples.gpu_ns.append(_passed(begin, end))
    samples.wall_ns.append(time.perf_counter_ns() - slot.started_ns)
    return flight
