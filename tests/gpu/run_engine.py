"""``load_engine`` on a GPU, compared with TensorRT used directly.

Runs in an interpreter with TensorRT, numpy and cuda-bindings, with torch and cupy too if they are
there: run_engine.py FOLDER. Prints a line per check and ends with 1 if one fails.
"""

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt

sys.path.append(str(Path(__file__).parents[2]))

from cuda.bindings import driver as cuda
from plain_tensorrt import Bare, build_plan

from buildsys import EngineError, load_engine
from buildsys.backends.cuda_device import Device
from buildsys.backends.cuda_gpus import call, find_driver
from buildsys.deploy.arrays import DeviceArray
from buildsys.system.compatibility import built_with
from buildsys.system.files import sha256_of

PROFILES = ((1, 1, 2), (3, 8, 16))  # batches
ROUNDS, RUNS, LIMIT = 40, 50, 1.10


def conv_network(network: Any) -> list[np.ndarray]:
    """Define a network like ResNet-34 with random weights: x (N, 3, 224, 224) -> mean, y."""
    rng, kernels = np.random.default_rng(0), []

    def conv(source: Any, channels: int, size: int, stride: int) -> Any:
        shape = (channels, source.shape[1], size, size)
        values = rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]))
        kernels.append(values.astype(np.float32))
        layer = network.add_convolution_nd(source, channels, (size, size), trt.Weights(kernels[-1]))
        layer.stride_nd, layer.padding_nd = (stride, stride), (size // 2, size // 2)
        return layer.get_output(0)

    def relu(source: Any) -> Any:
        return network.add_activation(source, trt.ActivationType.RELU).get_output(0)

    x = network.add_input("x", trt.DataType.FLOAT, (-1, 3, 224, 224))
    output = relu(conv(x, 64, 7, 4))
    for channels, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if channels > 64 and block == 0 else 1
            inner = conv(relu(conv(output, channels, 3, stride)), channels, 3, 1)
            same = output if stride == 1 else conv(output, channels, 1, stride)
            summed = network.add_elementwise(inner, same, trt.ElementWiseOperation.SUM)
            output = relu(summed.get_output(0))
    mean = network.add_reduce(output, trt.ReduceOperation.AVG, 0b1100, False).get_output(0)
    y = network.add_reduce(mean, trt.ReduceOperation.MAX, 0b10, True).get_output(0)
    for name, tensor in (("mean", mean), ("y", y)):
        tensor.name = name
        network.mark_output(tensor)
    return kernels


def build(folder: Path) -> Path:
    """Write an engine with two profiles and its engine.json."""
    engine = folder / "engine.engine"
    engine.write_bytes(build_plan(conv_network, PROFILES))
    gpu = find_driver().gpus[0]
    device = {"kind": "gpu", "name": gpu.name, "compute_capability": gpu.compute_capability}
    facts = {"bytes": engine.stat().st_size, "sha256": sha256_of(engine)}
    record = {
        "model": "net", "variant": "trt", "backend": "tensorrt", "status": "passed",
        "settings": {"precision": "fp16"}, "built_with": built_with("tensorrt", device),
        "files": {engine.name: facts}, "engine_sha256": facts["sha256"],
    }  # fmt: skip
    engine.with_name("engine.json").write_text(json.dumps(record))
    return engine


def bare_of(file: Path, batch: int) -> Bare:
    profile = next(n for n, (low, _, high) in enumerate(PROFILES) if low <= batch <= high)
    return Bare(file, {"x": x_of(batch)}, profile)


def x_of(batch: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 3, 224, 224), np.float32)


def assert_equal(found: Any, expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected), list(found)
    for name, values in expected.items():
        # the tactics are those of one engine, so only atomics may make a difference
        np.testing.assert_allclose(np.asarray(found[name]), values, rtol=1e-3, atol=1e-3)


def expected_of(file: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    bare = bare_of(file, x.shape[0])
    with bare.device.current():
        found = bare.host(x=x)
    bare.close()
    return found


def refused(call_: Callable[[], object], part: str) -> str:
    try:
        call_()
    except EngineError as error:
        assert part in str(error), f"{part!r} is not in {error}"
        assert "\n" not in str(error)
        return str(error)
    raise AssertionError(f"not refused: {part}")


def check_host_arrays(file: Path) -> str:
    with load_engine(file) as engine:
        for batch in (1, 2, 3, 8, 2, 16):
            x = x_of(batch)
            assert_equal(engine(x=x), expected_of(file, x))
        found = engine(x=x)
        engine(x=x_of(16, 1))
        assert_equal(found, expected_of(file, x))
        big = x_of(4)
        assert_equal(engine(x=big[::2]), expected_of(file, np.ascontiguousarray(big[::2])))
        return repr(engine)


def host_of(found: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in found.items()}


def check_device_arrays(file: Path) -> str:
    with load_engine(file) as engine:
        for batch in (1, 8, 8, 1):
            x = x_of(batch)
            given = DeviceArray.from_host(x)
            found: Any = engine(x=given)
            assert all(isinstance(array, DeviceArray) for array in found.values())
            expected = expected_of(file, x)
            assert_equal(host_of(found), expected)
            assert_equal(engine(x=x), expected)
            out: Any = {name: DeviceArray("float32", expected[name].shape) for name in expected}
            assert engine.run({"x": given}, out=out)["y"] is out["y"]
            assert_equal(host_of(out), expected)
            bound = engine.bind({"x": given}, out=out)
            given._buffer.upload(2 * x)
            assert_equal(host_of(bound()), expected_of(file, 2 * x))
            given._buffer.upload(x)
            assert_equal(host_of(bound()), expected)
    return str(given)


def check_graphs(file: Path) -> str:
    """Calls that became CUDA graphs see new values and other shapes."""
    xs = {batch: [x_of(batch, seed) for seed in range(3)] for batch in (1, 2, 8)}
    expected = {batch: [expected_of(file, x) for x in xs[batch]] for batch in xs}
    used = 0
    with load_engine(file) as engine:
        session: Any = engine._pool._first
        for batch in (8, 1, 2, 8):
            for number in range(60):
                assert_equal(engine(x=xs[batch][number % 3]), expected[batch][number % 3])
            used += session.graph is not None
            given = DeviceArray.from_host(xs[batch][0])
            bound = engine.bind({"x": given})
            for number in range(60):
                given._buffer.upload(xs[batch][number % 3])
                assert_equal(host_of(bound()), expected[batch][number % 3])
            used += session.graph is not None
        assert used
        refused(lambda: engine(x=x_of(17)), "no optimization profile")
        assert_equal(engine(x=xs[1][0]), expected[1][0])
    with load_engine(file, options={"cuda_graphs": False}) as engine:
        for _ in range(20):
            engine(x=xs[1][0])
        session = engine._pool._first
        assert session.graph is None
    return f"{used} graphs"


def check_streams(file: Path) -> str:
    """Inferences on the caller's streams return before they are complete."""
    device = Device(0)
    with device.current():
        streams = [call(cuda.cuStreamCreate, 1) for _ in range(2)]
    given = [DeviceArray.from_host(x_of(16, seed)) for seed in range(2)]
    expected = [expected_of(file, x_of(16, seed)) for seed in range(2)]
    with load_engine(file) as engine:
        for index in range(2):
            engine.run({"x": given[index]}, stream=int(streams[index]))
        with device.current():
            call(cuda.cuCtxSynchronize)
        outs: list[Any] = [
            {name: DeviceArray("float32", expected[0][name].shape) for name in expected[0]}
            for _ in range(6)
        ]
        begun = time.perf_counter()
        for number, out in enumerate(outs):
            stream = int(streams[number % 2])
            engine.run({"x": given[number % 2]}, stream=stream, out=out)
        queued = time.perf_counter() - begun
        with device.current():
            call(cuda.cuCtxSynchronize)
        whole = time.perf_counter() - begun
        for number, out in enumerate(outs):
            assert_equal(host_of(out), expected[number % 2])
        engine.run({"x": given[0]}, stream=int(streams[0]))  # closed while it runs
    device.close()
    assert queued < 0.8 * whole, f"queued in {queued:.4f} s of {whole:.4f} s"
    return f"6 inferences queued in {queued * 1e3:.2f} ms, complete after {whole * 1e3:.2f} ms"


def check_threads(file: Path) -> str:
    inputs = [x_of(1 + seed % 8, seed) for seed in range(16)]
    expected = [expected_of(file, x) for x in inputs]
    counts = []
    for concurrency in (None, 1):
        with load_engine(file, concurrency=concurrency) as engine, ThreadPoolExecutor(4) as threads:
            # errors of one thread do not reach another
            wrong = [threads.submit(engine, x=x_of(17)) for _ in range(4)]
            outputs = threads.map(lambda x: engine(x=x), inputs)
            for actual, values in zip(outputs, expected, strict=True):
                assert_equal(actual, values)
            for submitted in wrong:
                refused(submitted.result, "no optimization profile")
            counts.append(len(engine._pool._all))
    assert counts[0] <= 4, counts
    assert counts[1] == 1, counts
    return f"contexts: {counts}"


def check_lifetime(file: Path) -> str:
    device, free = Device(0), []
    with device.current():
        for _ in range(4):
            engine = load_engine(file)
            kept: Any = engine(x=DeviceArray.from_host(x_of(8)))
            engine(x=x_of(8))
            engine.close()
            engine.close()
            before = host_of(kept)  # outputs outlive the engine
            np.testing.assert_array_equal(kept["mean"].numpy(), before["mean"])
            del kept
            free.append(device.memory()[0])
        device.close()
    assert max(free[1:]) - min(free[1:]) < 8 << 20, f"free memory: {free}"
    return refused(lambda: engine(x=x_of(1)), "is closed")


def check_library(name: str) -> Callable[[Path], str]:
    def check(file: Path) -> str:
        try:
            library: Any = __import__(name)
        except ImportError as error:
            return f"skipped: {error}"
        is_torch, x = name == "torch", x_of(8)
        array_type = library.Tensor if is_torch else library.ndarray

        def host(outputs: dict[str, Any]) -> dict[str, Any]:
            assert all(isinstance(array, array_type) for array in outputs.values())
            return {
                key: array.cpu() if is_torch else library.asnumpy(array)
                for key, array in outputs.items()
            }

        with load_engine(file) as engine:
            given = library.from_numpy(x).cuda() if is_torch else library.asarray(x)
            assert_equal(host(engine(x=given)), expected_of(file, x))
            stream = library.cuda.Stream()
            with library.cuda.stream(stream) if is_torch else stream:
                doubled = given * 2  # in flight when the engine takes it
                later = engine.run({"x": doubled}, stream=stream)
            stream.synchronize()
            assert_equal(host(later), expected_of(file, 2 * x))
            turned = given.transpose(2, 3) if is_torch else given.transpose(0, 1, 3, 2)
            refused(lambda: engine(x=turned), "is not contiguous")
        return str(library.__version__)

    return check


def check_latency(file: Path) -> str:
    """Compare calls of the engine with bare loops, in turns."""
    ratios = {}
    for batch in (1, 8):
        x, bare = x_of(batch), bare_of(file, batch)
        with load_engine(file) as engine, bare.device.current():
            on_gpu: Any = DeviceArray.from_host(x)
            out: Any = {name: DeviceArray("float32", bare.shapes[name]) for name in ("mean", "y")}
            bound = engine.bind({"x": on_gpu}, out=out)
            pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
                "host arrays": (lambda: bare.host(x=x), lambda: engine(x=x)),  # noqa: B023
                "device arrays": (bare.on_device, lambda: engine(x=on_gpu)),  # noqa: B023
                "device arrays, bound": (bare.on_device, bound),
            }
            ratios |= {f"{name}, batch {batch}": ratio(*pair) for name, pair in pairs.items()}
        bare.close()
    slow = {name: value for name, value in ratios.items() if value > LIMIT}
    assert not slow, slow
    return ", ".join(f"{name}: {value:.3f}" for name, value in ratios.items())


def ratio(theirs: Callable[[], object], ours: Callable[[], object]) -> float:
    """Time both in turns; return the median ratio of neighbours."""

    def median_ns(function: Callable[[], object]) -> float:
        times = []
        for _ in range(RUNS):
            begun = time.perf_counter_ns()
            function()
            times.append(time.perf_counter_ns() - begun)
        return statistics.median(times[2:])

    ratios = []
    for number in range(ROUNDS):
        order = (theirs, ours) if number % 2 else (ours, theirs)
        taken = {function: median_ns(function) for function in order}
        ratios.append(taken[ours] / taken[theirs])
    return statistics.median(ratios[1:])


CHECKS: dict[str, Callable[[Path], str]] = {
    "host arrays": check_host_arrays,
    "device arrays": check_device_arrays,
    "graphs": check_graphs,
    "streams": check_streams,
    "threads": check_threads,
    "lifetime": check_lifetime,
    "torch": check_library("torch"),
    "cupy": check_library("cupy"),
    "latency": check_latency,
}


def main() -> int:
    folder = Path(sys.argv[1])
    print(f"TensorRT {trt.__version__}, {find_driver().gpus[0].name}", flush=True)
    file, failed = build(folder), 0
    for name, check in CHECKS.items():
        try:
            print(f"ok {name}: {check(file)}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
