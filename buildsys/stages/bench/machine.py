"""The speed of a machine: its fastest matrix products, and copies in its memory.

They are measured right after the engine, with as many threads: what programs reach here, which is
less than the vendor's figures.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from buildsys.errors import StageError
from buildsys.report.formatting import percent
from buildsys.system.backend_registry import uses_tf32
from buildsys.system.cpu import OtherLoad, cache_bytes
from buildsys.system.processes import run_python

if TYPE_CHECKING:
    from buildsys.stages.bench.result import MachineSpeed

_LONGEST_S, _SHORTEST_S = 0.4, 0.1  # of products, and of copies
_PROCESS_LIMIT_S = 60.0
_LEAST_COPY, _LARGEST_COPY = 2**26, 2**30
_COPIES = 8  # per start of the threads
_GPU_SIZE = 8192  # of square matrices
_THREADS = ("OMP", "OPENBLAS", "MKL", "VECLIB", "BLIS")
_OF_PRECISION = {"fp32": "float32", "bf16": "bfloat16"}  # others are compared with float16


def measure_machine(
    kind: str, options: Mapping[str, Any], threads: int, bench: Mapping[str, Any]
) -> MachineSpeed:
    """Measure the device of an engine with ``options``, within the limits of ``bench``."""
    limit_s = min(_LONGEST_S, bench["duration"])
    if limit_s < _SHORTEST_S:
        return {"missing": [f"bench.duration is shorter than {_SHORTEST_S:g} s"]}
    if kind == "gpu":
        return _measure_gpu(options, limit_s)
    if kind != "cpu":
        return {"missing": ["the device is neither a processor nor an NVIDIA GPU"]}
    others = OtherLoad()
    # BLAS libraries read their number of threads when they are loaded
    environment = {**os.environ, **{f"{name}_NUM_THREADS": str(threads) for name in _THREADS}}
    command, request = ["-c", f"from {__name__} import main; main()"], [threads, limit_s]
    done = run_python(command, request, environment=environment, limit_s=_PROCESS_LIMIT_S)
    try:
        speed = done.json()
    except ValueError:
        sys.stderr.write(done.stderr)
        return {"missing": [f"the processor was not measured ({done.problem})"]}
    share, limit = others.share(), (bench["noise"] or {}).get("other_load")
    if share is not None and limit is not None and share > limit:
        used = f"other processes used {percent(share, 0)} of the processors"
        return {"missing": [f"while the processor was measured, {used}"]}
    return cast("MachineSpeed", {"threads": threads, **speed})


def main() -> None:
    """Measure the processor with the threads and the time limit on stdin."""
    import numpy as np

    threads, limit_s = json.load(sys.stdin)
    size = 1024 << threads.bit_length() // 3
    values = np.random.default_rng(0).random((size, size), dtype=np.float32)
    product = np.empty_like(values)
    macs_per_s = _best_rate(size**3, lambda: np.matmul(values, values, out=product), limit_s)
    size = min(max(_LEAST_COPY, 2 * cache_bytes()), _LARGEST_COPY)
    source, target = np.empty(size, np.uint8), np.empty(size, np.uint8)
    parts = [slice(*ends) for ends in pairwise(size * n // threads for n in range(threads + 1))]

    def copy(part: slice) -> None:
        for _ in range(_COPIES):
            np.copyto(target[part], source[part])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: source[part].fill(1), parts))  # memory next to its thread
        moved = 2 * _COPIES * size
        bytes_per_s = _best_rate(moved, lambda: list(pool.map(copy, parts)), limit_s)
    speed = {"macs_per_s": macs_per_s, "macs_type": "float32", "bytes_per_s": bytes_per_s}
    sys.stdout.write(f"\n{json.dumps({**speed, 'cache_bytes': cache_bytes()})}")


def _best_rate(amount: float, work: Callable[[], object], limit_s: float) -> float:
    """Repeat ``work``, at least twice; return the most of its ``amount`` per second."""
    rates: list[float] = []
    end = time.perf_counter() + limit_s
    while len(rates) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        rates.append(amount / (time.perf_counter() - start))
    return max(rates)


def _measure_gpu(options: Mapping[str, Any], limit_s: float) -> MachineSpeed:
    """Measure the first GPU: copies by the driver, products by PyTorch if it is imported."""
    from cuda.bindings import driver as cuda

    from buildsys.backends.cuda_device import Device
    from buildsys.backends.cuda_gpus import call

    cache = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    speed, torch = cast("MachineSpeed", {}), sys.modules.get("torch")
    try:
        with closing(Device(0)) as device, device.current():
            size, stream = min(_LARGEST_COPY, device.memory()[0] // 8), device.main_stream
            source, target = device.allocate(size), device.allocate(size)

            def copy() -> None:
                target.copy_on_device(source.address, size, stream)
                stream.synchronize()

            speed["bytes_per_s"] = _best_rate(2 * size, copy, limit_s)
            speed["cache_bytes"] = call(cuda.cuDeviceGetAttribute, cache, 0)
        if torch is None or not torch.cuda.is_available():
            return {**speed, "missing": ["no PyTorch baseline measures the peak of the GPU"]}
        from buildsys.backends.torch.gpu_programs import float32_arithmetic

        name = _OF_PRECISION.get(options["precision"], "float16")
        is_tf32 = name == "float32" and uses_tf32(options)
        with float32_arithmetic(tf32=is_tf32):
            values = torch.randn(_GPU_SIZE, _GPU_SIZE, dtype=getattr(torch, name), device="cuda")
            multiply = lambda: (values @ values, torch.cuda.synchronize())  # noqa: E731
            speed["macs_per_s"] = _best_rate(_GPU_SIZE**3, multiply, limit_s)
            speed["macs_type"] = "tf32" if is_tf32 else name
    except (StageError, RuntimeError) as error:  # out of memory
        speed["missing"] = [f"the GPU could not be measured: {str(error).splitlines()[0]}"]
    return speed
