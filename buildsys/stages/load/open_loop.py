"""Requests at random times to an engine that ``load_engine`` has loaded, in a process of its own.

All arrivals are scheduled before the first request, and a latency counts from its scheduled time:
a sender that waits for answers would leave out the requests that a slow answer delays (coordinated
omission). The threads that make the calls are the sender: each takes the next arrival in turn and
waits for its time, so requests are served in order by the first idle instance, without a queue that
would need time itself. An arrival that no thread was waiting for has queued.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from buildsys.errors import EngineError, StageError, Unavailable
from buildsys.stages.load.capacity import SHARES, explore, p99_interval
from buildsys.system.energy import energy_counter

if TYPE_CHECKING:
    from buildsys.onnx_graphs.tensors import Array
    from buildsys.stages.load.result import LoadPoint

_clock = time.perf_counter
_SPIN_S = 0.0005  # before an arrival: a sleeping thread wakes up to a millisecond late
_TIMER_SLACK = 29  # of prctl: Linux delays the end of a sleep by 50 µs
_MOST_REQUESTS = 100_000  # at one rate
_LEAD_S = 0.02  # before the first request, for the threads to start
_WARMUP_S = 0.3
_LEAST_WAITS = 20  # fewer say nothing about the sender
_TRIAL_S = 0.3
_BEHIND = 0.1  # of the trial, half of the requests: the delay grows
_MS = 1e3


class OpenLoop:
    """A load on ``call`` from as many threads as there are instances."""

    def __init__(self, call: Callable[[], object], instances: int, limit_ms: float) -> None:
        """Start the threads on first use. ``limit_ms`` limits the 99th percentile."""
        with suppress(OSError, AttributeError):  # only on Linux; new threads inherit it
            ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)
        self._call, self._instances, self._limit_s = call, instances, limit_ms / _MS
        self._pool = ThreadPoolExecutor(instances)

    def saturate(self, duration_s: float) -> float:
        """Call without breaks; return the calls per second of all threads."""

        def work() -> float:
            start, done = _clock(), 0
            while not done or _clock() < start + duration_s:
                self._call()
                done += 1
            return done / (_clock() - start)

        futures = [self._pool.submit(work) for _ in range(self._instances)]
        return sum(future.result() for future in futures)

    def measure(self, rate_per_s: float, duration_s: float, seed: int = 0) -> LoadPoint:
        """Send requests at random times, equally spread in proportion for all rates."""
        number = min(math.ceil(rate_per_s * duration_s), _MOST_REQUESTS)
        gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, number)
        due = np.cumsum(gaps)
        starts, ends, waited = [0.0] * number, [0.0] * number, [False] * number
        arrivals, begin = count(), _clock() + _LEAD_S
        times = (due + begin).tolist()
        # what has not begun by then has exceeded the limit
        stop = times[-1] + self._limit_s

        def work() -> None:
            while (n := next(arrivals)) < number and ((now := _clock()) < stop or not n):
                waited[n] = now < times[n]
                while (left := times[n] - _clock()) > 0:
                    time.sleep(max(left - _SPIN_S, 0))
                starts[n] = _clock()
                self._call()
                ends[n] = _clock()

        futures = [self._pool.submit(work) for _ in range(self._instances)]
        for future in futures:
            future.result()
        scheduled, started, ended = map(np.asarray, (times, starts, ends))
        is_done = ended > 0
        latencies_ms = (np.where(is_done, ended, stop) - scheduled) * _MS
        delays = (started - scheduled)[np.asarray(waited) & is_done] * _MS
        p50, p99 = np.percentile(latencies_ms, (50, 99))
        return {
            "rate_per_s": rate_per_s,
            "requests": number,
            "served": int(is_done.sum()),
            "served_per_s": float(is_done.sum() / (ended.max() - begin)),
            "p50_ms": float(p50),
            "p99_ms": float(p99),
            "p99_interval_ms": p99_interval(latencies_ms),
            "service_ms": float(np.median((ended - started)[is_done])) * _MS,
            "lateness_ms": None if len(delays) < _LEAST_WAITS else float(np.percentile(delays, 99)),
            "is_overload": not is_done.all(),
        }

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def check_sender(rate_per_s: float, instances: int) -> None:
    """Send requests to nothing. Raises: StageError: this machine cannot send as many."""
    trial_s = min(_TRIAL_S, _MOST_REQUESTS / rate_per_s)
    trial = OpenLoop(lambda: None, instances, trial_s * _MS)
    sent = trial.measure(rate_per_s, trial_s)
    trial.close()
    if sent["p50_ms"] > _BEHIND * trial_s * _MS:
        raise StageError(
            f"this machine cannot send {rate_per_s:,.0f} requests per second: it sent"
            f" {sent['served_per_s']:,.0f} per second even without an engine",
            "lower bench.load.rates",
        )


def repeated(
    inputs: Mapping[str, Array], axes: Mapping[str, list[int]], size: int
) -> dict[str, Array]:
    """Repeat or cut inputs to ``size`` along the given axes."""
    arrays = dict(inputs)
    for name, numbers in axes.items():
        for axis in numbers:
            places = np.arange(size) % arrays[name].shape[axis]
            arrays[name] = np.ascontiguousarray(arrays[name].take(places, axis))
    return arrays


def main() -> None:
    """Answer the request on stdin with figures, or with the problem of the engine."""
    try:
        answer = _measure(json.load(sys.stdin))
    except StageError as error:
        answer = {"problem": error.problem, "hint": error.hint}
        answer["is_unavailable"] = isinstance(error, Unavailable)
    sys.stdout.write(f"\n{json.dumps(answer)}")


def _measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load the engine and measure one setting, at rates up to the end of its time."""
    from buildsys.backends.interface import load_backend
    from buildsys.deploy.engine import load_engine
    from buildsys.onnx_graphs.tensors import load_case

    end = time.monotonic() + request["limit_s"]
    instances, rates, duration_s = (request[name] for name in ("instances", "rates", "duration_s"))
    load_backend(request["backend"], to_run=True)
    inputs = {n: tensor.typed() for n, tensor in load_case(Path(request["case"])).inputs.items()}
    inputs = repeated(inputs, request["axes"], request["batch"])
    if rates:
        check_sender(max(rates), instances)
    with ExitStack() as stack:
        try:
            engine = load_engine(
                request["engine"],
                project=request["project"],
                options=request["options"],
                concurrency=instances,
            )
        except EngineError as error:
            raise Unavailable(error.problem, error.hint) from error
        stack.enter_context(engine)
        counter = stack.enter_context(energy_counter(_gpu() if request["on_gpu"] else ""))
        load = OpenLoop(lambda: engine.run(inputs), instances, request["limit_ms"])
        stack.callback(load.close)

        def measure(rate_per_s: float) -> LoadPoint:
            if time.monotonic() + duration_s > end:
                raise TimeoutError
            joules = counter.start()
            point = load.measure(rate_per_s, duration_s)
            taken = joules()
            return {**point, "joules": taken and taken / point["served"]}

        load.saturate(_WARMUP_S)
        most_per_s = load.saturate(min(duration_s, max(1.0, duration_s / 2)))
        rates = rates or [share * most_per_s for share in SHARES]
        points, is_cut = explore(measure, rates, request["limit_ms"])
        figures = {"max_per_s": most_per_s, "points": points, "is_cut": is_cut}
        return {**figures, "energy": counter.source}


def _gpu() -> str:
    from buildsys.backends.cuda_gpus import find_driver, pci_bus_id

    return pci_bus_id(0) if find_driver().gpus else "none"
