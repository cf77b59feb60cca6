"""Cold starts of an engine: fresh processes that load it with ``load_engine``, as its users do.

The engine's files are in the page cache, as the benchmark has just read them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from buildsys.errors import BuildsysError
from buildsys.system.processes import resident_memory

if TYPE_CHECKING:
    from buildsys.stages.bench.result import ColdStart
    from buildsys.workers.job import Job

_LIMIT_S = 600.0  # of a process
_NS_PER_MS = 1_000_000
_STEADY = 1.1  # times the steady median
_WINDOW = 3  # calls: a single fast one is not steady
_CALLS, _CALLS_NS = 20, 200 * _NS_PER_MS  # at least
_FEW_CALLS, _MOST_NS = 5, 3000 * _NS_PER_MS  # slow calls end earlier


def measure_cold_starts(job: Job, case: Path, *, on_gpu: bool) -> ColdStart:
    """Load and call the engine of a bench job in fresh processes, on the inputs of ``case``."""
    from buildsys.stages.bench.fresh_process import fresh_processes  # not in those processes

    count, backend = job.options["bench"]["cold_start"], job.options["engine"]["backend"]
    figures: dict[str, Any] = {}
    with fresh_processes(job, __name__) as ask:
        for number in range(count):
            job.progress(f"cold start {number + 1} of {count}")
            place = str(job.inputs["engine"]), str(case), str(job.project)
            answer = ask([time.monotonic_ns(), backend, *place, on_gpu], _LIMIT_S)
            if "problem" in answer:
                return cast("ColdStart", answer)
            for name, value in answer.items():
                figures.setdefault(name, []).append(value)
    return cast("ColdStart", figures)


def main() -> None:
    """Answer the request on stdin with figures, or with the problem of loading the engine."""
    began_ns, backend, engine, case, project, on_gpu = json.load(sys.stdin)
    clock = time.monotonic_ns  # the same in every process
    try:
        from buildsys.backends.interface import load_backend
        from buildsys.deploy.engine import load_engine

        load_backend(backend, to_run=True)  # imports its library
        figures: dict[str, float] = {"imports_ms": (clock() - began_ns) / _NS_PER_MS}

        from buildsys.onnx_graphs.tensors import load_case

        inputs = {name: tensor.typed() for name, tensor in load_case(Path(case)).inputs.items()}
        figures |= _memory("imports", on_gpu=on_gpu)
        start_ns = clock()
        with load_engine(engine, project=project) as loaded:
            figures["load_ms"] = (clock() - start_ns) / _NS_PER_MS
            figures |= _memory("loaded", on_gpu=on_gpu)
            calls_ns = [_timed(lambda: loaded.run(inputs))]
            figures |= _memory("called", on_gpu=on_gpu)
            while not _is_enough(calls_ns):
                calls_ns.append(_timed(lambda: loaded.run(inputs)))
        count = count_warm_up(calls_ns)
        figures |= {
            "first_call_ms": calls_ns[0] / _NS_PER_MS,
            "warmup_calls": count,
            "warmup_ms": sum(calls_ns[:count]) / _NS_PER_MS,
        }
    except BuildsysError as error:
        sys.stdout.write(f"\n{json.dumps({'problem': str(error)})}")
    else:
        sys.stdout.write(f"\n{json.dumps(figures)}")


def count_warm_up(calls_ns: Sequence[int]) -> int:
    """Count the calls before the first as fast as the later half."""
    limit_ns = _STEADY * median(calls_ns[len(calls_ns) // 2 :])
    for number, call_ns in enumerate(calls_ns):
        if max(call_ns, median(calls_ns[number : number + _WINDOW])) <= limit_ns:
            return number
    return len(calls_ns)


def _is_enough(calls_ns: Sequence[int]) -> bool:
    taken_ns = sum(calls_ns)
    is_slow = taken_ns >= _MOST_NS and len(calls_ns) >= _FEW_CALLS
    return is_slow or (taken_ns >= _CALLS_NS and len(calls_ns) >= _CALLS)


def _timed(call: Callable[[], object]) -> int:
    start_ns = time.monotonic_ns()
    call()
    return time.monotonic_ns() - start_ns


def _memory(when: str, *, on_gpu: bool) -> dict[str, float]:
    """Read this process's resident memory, and the GPU's memory in use, if they are known."""
    names = f"{when}_bytes", "peak_bytes"
    figures: dict[str, float] = dict(zip(names, resident_memory() or (), strict=False))
    if on_gpu:
        # without a context of CUDA, whose start is part of loading
        from buildsys.system.devices import VISIBLE_DEVICES, GpuError, read_gpus

        with suppress(GpuError, IndexError, TypeError):  # a part of a GPU may not say it
            gpu = read_gpus(os.environ.get(VISIBLE_DEVICES))[0]
            figures[f"gpu_{when}_bytes"] = gpu["memory_bytes"] - gpu["free_bytes"]
    return figures
