"""Time what is put on the streams of a GPU: by the host's clock from launch to completion, and by the GPU's own.

With one inference in flight, half of the time goes to inferences one at a time, each waited for: what a lone request
takes. The other half goes to inferences queued one behind the other, each between two events: what the GPU takes, as
between the events of a lone inference it also waits for the host to launch its first kernel. With several in flight
both clocks time the same inferences, which then share the GPU.

Source: TensorRT developer guide, "Performance Benchmarking using trtexec": its GPU compute time is that of queued
inferences, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from buildsys.backends.measurement.interleaving import Contender, Samples
from buildsys.onnx_graphs.tensors import Tensor

if TYPE_CHECKING:
    from buildsys.backends.cuda.device import Device, Event, Stream

ENGINE = "engine"  # contenders: the engine, launched kernel by kernel …
ENGINE_CUDA_GRAPH = "engine_cuda_graph"  # … and as one captured graph
Launch = Callable[[], object]
_NS = 1_000_000_000
_QUEUED = 4  # inferences on the stream at a time: with two the GPU never waits for a host that is fast enough


@dataclass(frozen=True)
class GpuTiming:
    """How an engine on a GPU is timed."""

    cuda_graph: tuple[bool, ...] = (False,)  # a contender each
    transfers: str = "none"  # copies within the measured time: none, in, out or both
    in_flight: int = 1
    wait: str = "spin"  # or block

    @property
    def copies_in(self) -> bool:
        """Return whether inputs come from the host."""
        return self.transfers in ("in", "both")

    @property
    def copies_out(self) -> bool:
        """Return whether outputs go to the host."""
        return self.transfers in ("out", "both")


@dataclass
class Slot:
    """One inference in flight: its stream, and the call that puts it there."""

    stream: Stream
    launch: Launch
    started_ns: int = field(default=0, init=False)  # by the host's clock


@runtime_checkable
class GpuSession(Protocol):
    """A loaded engine that is timed by the GPU's clock."""

    def contenders(self, inputs: Mapping[str, Tensor], timing: GpuTiming) -> dict[str, Contender]:
        """Return what times the engine on these inputs; only those of the last call may be used."""
        ...

    def memory_figures(self) -> dict[str, Any]:
        """Return what the engine says of the memory that it needs."""
        ...


class GpuContender:
    """Inferences on a GPU, as many in flight as there are slots."""

    def __init__(self, device: Device, slots: Sequence[Slot], *, blocking: bool) -> None:
        """Take over the slots; ``blocking`` waits asleep instead of spinning."""
        self._device = device
        self._slots = tuple(slots)
        pairs = _QUEUED if len(self._slots) == 1 else len(self._slots)
        with device.current():
            self._events = [
                (device.new_event(blocking=blocking), device.new_event(blocking=blocking))
                for _ in range(pairs)
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
        return Samples(
            gpu_ns=taken[1:], queued_ns=clock() - begun
        )  # the first found an idle stream

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
