"""Interleaved contenders on a simulated clock, and timing loops on a simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from buildsys.backends import measurement
from buildsys.backends.measurement import GpuContender, LocalCall, Pace, Samples, Slot, measure
from buildsys.errors import StageError

MS = 1_000_000


class Bench:
    """Contenders of fixed durations, with the order of their calls."""

    def __init__(self, **durations_ms: int) -> None:
        self.now = 0
        self.calls: list[str] = []
        self.contenders = {
            name: self._contender(name, duration * MS) for name, duration in durations_ms.items()
        }

    def clock(self) -> int:
        return self.now

    def _contender(self, name: str, duration: int) -> LocalCall:
        def call() -> None:
            self.calls.append(name)
            self.now += duration

        return LocalCall(call, self.clock)

    def measure(self, pace: Pace) -> dict[str, list[int]]:
        return {
            name: Samples.joined(blocks).wall_ns
            for name, blocks in measure(self.contenders, pace).items()
        }

    def turns(self) -> list[tuple[str, int]]:
        turns: list[tuple[str, int]] = []
        for name in self.calls:
            if turns and turns[-1][0] == name:
                turns[-1] = (name, turns[-1][1] + 1)
            else:
                turns.append((name, 1))
        return turns


def test_every_contender_is_measured_for_the_duration() -> None:
    bench = Bench(fast=1, slow=7)
    samples = bench.measure(Pace(duration_s=0.5, warmup_s=0, min_samples=1))
    assert sum(samples["fast"]) >= 500 * MS
    assert sum(samples["slow"]) >= 500 * MS
    assert set(samples["fast"]) == {1 * MS}
    assert set(samples["slow"]) == {7 * MS}
    alone = Bench(only=10)
    pace = Pace(duration_s=0.2, warmup_s=0, min_samples=1, block_s=0.1, block_runs=1)
    assert len(alone.measure(pace)["only"]) == 20
    assert len(alone.calls) == 21, "it needs no settling"


def test_a_measurement_lasts_until_every_contender_has_enough_samples() -> None:
    bench = Bench(fast=1, slow=60)
    blocks = measure(bench.contenders, Pace(duration_s=0.05, warmup_s=0, min_samples=100))
    assert len(blocks["fast"]) == len(blocks["slow"])
    assert min(len(Samples.joined(taken).wall_ns) for taken in blocks.values()) >= 100


def test_a_measurement_without_time_has_the_least_samples_of_every_contender() -> None:
    bench = Bench(fast=1, slow=60)
    samples = bench.measure(Pace(duration_s=10, warmup_s=0, min_samples=7, limit_s=0))
    assert len(samples["slow"]) == 10, "two turns of five calls"
    assert sum(samples["fast"]) < 1000 * MS


def test_contenders_take_turns_and_the_order_is_reversed_every_round() -> None:
    bench = Bench(a=10, b=10)
    pace = Pace(0.4, 0, 1, block_s=0.1, block_runs=1, settle_s=0.02, settle_runs=1)
    bench.measure(pace)
    # warm-up a b, then rounds a b, b a, a b, b a: neighbours of the same contender join
    turns = [("a", 1), ("b", 1), ("a", 12), ("b", 24), ("a", 24), ("b", 24), ("a", 12)]
    assert bench.turns() == turns


def test_the_first_calls_of_a_turn_do_not_count() -> None:
    bench = Bench(a=10, b=10)
    pace = Pace(0.1, 0.05, 1, block_s=0.1, block_runs=1, settle_s=0.03, settle_runs=2)
    samples = bench.measure(pace)
    assert {name: len(taken) for name, taken in samples.items()} == {"a": 10, "b": 10}
    assert bench.calls.count("a") == 5 + 3 + 10


def test_a_contender_whose_work_fails_is_named() -> None:
    def fail() -> None:
        raise StageError("the CUDA driver's cuEventSynchronize failed", "end other programs")

    contenders = {"engine": LocalCall(lambda: None), "torch_compile": LocalCall(fail)}
    with pytest.raises(
        StageError, match="timing torch_compile failed: the CUDA driver's cuEventSynchronize"
    ) as raised:
        measure(contenders, Pace(0.01, 0, 1))
    assert raised.value.hint == "end other programs"


def test_the_count_is_of_the_slowest_contender_after_each_round() -> None:
    bench = Bench(fast=1, slow=10)
    counted: list[tuple[int, int, str]] = []
    pace = Pace(duration_s=0.3, warmup_s=0, min_samples=1)
    measure(bench.contenders, pace, lambda *found: counted.append(found))
    assert [found[0] for found in counted] == [10, 20, 30]
    assert {found[1:] for found in counted} == {(0, "samples")}


US = 1000


class Machine:
    """A host and a GPU with one clock, working in parallel."""

    def __init__(self, launch_us: int, work_us: int) -> None:
        self.now = 0
        self.launch_ns, self.work_ns = launch_us * US, work_us * US
        self.at_work = self.most_at_work = 0
        self.held: list[SimulatedEvent] = []

    @contextmanager
    def current(self) -> Iterator[None]:
        yield

    def new_event(self, *, blocking: bool = False) -> SimulatedEvent:
        self.held.append(SimulatedEvent(self))
        return self.held[-1]

    def free(self, event: SimulatedEvent) -> None:
        self.held.remove(event)

    def slot(self) -> Slot:
        stream = SimulatedStream()

        def launch() -> None:
            self.now += self.launch_ns
            stream.busy_until = max(stream.busy_until, self.now) + self.work_ns
            stream.waiting.append(stream.busy_until)
            waiting = sum(end > self.now for end in stream.waiting)
            self.most_at_work = max(self.most_at_work, waiting)

        return Slot(stream, launch)  # type: ignore[arg-type]


@dataclass
class SimulatedStream:
    busy_until: int = 0
    waiting: list[int] = field(default_factory=list)


class SimulatedEvent:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.at = -1

    def record(self, stream: SimulatedStream) -> None:
        self.at = max(stream.busy_until, self.machine.now)

    def wait(self) -> None:
        assert self.at >= 0
        self.machine.now = max(self.machine.now, self.at)

    def elapsed_ns(self, begin: SimulatedEvent) -> int:
        self.wait()
        return self.at - begin.at


def contender(
    monkeypatch: pytest.MonkeyPatch, in_flight: int = 1, launch_us: int = 20, work_us: int = 100
) -> tuple[GpuContender, Machine]:
    machine = Machine(launch_us, work_us)
    monkeypatch.setattr(measurement.time, "perf_counter_ns", lambda: machine.now)
    return GpuContender(
        machine, [machine.slot() for _ in range(in_flight)], blocking=False
    ), machine  # type: ignore[arg-type]


def test_a_lone_inference_takes_launch_and_work_and_a_queued_one_its_work_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed, machine = contender(monkeypatch)
    samples = timed.block(0.02, 5)
    assert set(samples.wall_ns) == {120 * US}
    assert set(samples.gpu_ns) == {100 * US}  # without the first, which would hold its launch
    assert samples.elapsed_ns == sum(samples.wall_ns)
    assert samples.elapsed_ns >= 10_000 * US
    assert samples.queued_ns >= 10_000 * US
    assert 2 <= machine.most_at_work <= 5


@pytest.mark.parametrize("in_flight", [1, 3])
def test_few_runs_are_made_even_when_time_is_up(
    monkeypatch: pytest.MonkeyPatch, in_flight: int
) -> None:
    timed, _ = contender(monkeypatch, in_flight)
    samples = timed.block(0.0, 7)
    assert len(samples.wall_ns) >= 7
    assert len(samples.gpu_ns) >= 7


def test_several_in_flight_overlap_and_all_of_them_count(monkeypatch: pytest.MonkeyPatch) -> None:
    timed, _ = contender(monkeypatch, in_flight=4)
    samples = timed.block(0.02, 5)
    assert len(samples.wall_ns) == len(samples.gpu_ns)
    assert samples.queued_ns == 0
    assert samples.elapsed_ns < sum(samples.wall_ns) / 2  # they ran side by side
    assert min(samples.wall_ns) >= 120 * US


def test_events_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    timed, machine = contender(monkeypatch, in_flight=2)
    assert machine.held
    timed.close()
    assert machine.held == []
