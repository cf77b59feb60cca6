"""Running and timing on a GPU: CUDA, bare loops, NVML, real engines.

TensorRT is that of the interpreter BUILDSYS_TEST_TOOLCHAIN, else of this one.
"""

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_marks import ON_GPU

from buildsys.backends.cuda_device import CudaGraph, Device, HostBuffer, Stream
from buildsys.backends.cuda_gpus import pci_bus_id
from buildsys.backends.measurement import GpuContender, Slot
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor, save_case
from buildsys.system.devices import sampled
from buildsys.system.toolchains import Toolchain

ROOT = Path(__file__).parents[3]
TENSORRT = os.environ.get("BUILDSYS_TEST_TOOLCHAIN") or (
    sys.executable if importlib.util.find_spec("tensorrt") else ""
)
pytestmark = ON_GPU
with_tensorrt = pytest.mark.skipif(not TENSORRT, reason="no interpreter with TensorRT")
of_libraries = pytest.mark.filterwarnings(
    "ignore"
)  # what PyTorch says about its own exporters and compilers
BATCH = 8


@pytest.fixture
def device() -> Any:
    device = Device(0)
    with device.current():
        yield device
    device.close()


def test_events_time_the_work_between_them(device: Device) -> None:
    size = 256 << 20
    buffer, host = device.allocate(size), device.hold(HostBuffer(size))
    begin, middle, end = device.new_event(), device.new_event(), device.new_event(blocking=True)
    begin.record(device.main_stream)
    buffer.copy_from(host.address, size, device.main_stream)
    middle.record(device.main_stream)
    buffer.copy_from(host.address, size, device.main_stream)
    buffer.copy_from(host.address, size, device.main_stream)
    end.record(device.main_stream)
    start = time.perf_counter_ns()
    end.wait()
    once, twice = middle.elapsed_ns(begin), end.elapsed_ns(middle)
    assert 1.5 < twice / once < 2.5
    assert time.perf_counter_ns() - start > 0.5 * (once + twice)


def test_a_captured_graph_does_the_work_again(device: Device) -> None:
    buffer = device.allocate(4)
    source, target = device.hold(HostBuffer(4)), device.hold(HostBuffer(4))

    def work() -> None:
        buffer.copy_from(source.address, 4, device.main_stream)
        buffer.copy_to(target.address, 4, device.main_stream)

    source.fill(np.array([1], np.int32))
    target.fill(np.array([0], np.int32))
    graph = device.hold(CudaGraph(device.main_stream, work))
    assert target.array.view(np.int32)[0] == 0  # nothing has run yet
    for value in (7, 8):
        source.fill(np.array([value], np.int32))
        graph.launch(device.main_stream)
        device.main_stream.synchronize()
        assert target.array.view(np.int32)[0] == value


def test_a_failed_capture_leaves_the_stream_usable(device: Device) -> None:
    def work() -> None:
        device.main_stream.synchronize()

    with pytest.raises(StageError, match="CUDA_ERROR_STREAM_CAPTURE"):
        CudaGraph(device.main_stream, work)
    device.main_stream.synchronize()
    buffer = device.allocate(8)
    buffer.upload(np.zeros(8, np.uint8))


def products(device: Device, size: int, count: int = 1) -> tuple[Any, Slot]:
    torch = pytest.importorskip("torch")
    matrix = torch.randn(size, size, device="cuda", dtype=torch.float16)
    stream = torch.cuda.Stream()

    def launch() -> None:
        with torch.cuda.stream(stream):
            for _ in range(count):
                matrix @ matrix

    return stream, Slot(Stream(stream.cuda_stream), launch)


def test_nvml_reads_the_gpu_in_use(device: Device) -> None:
    contender = GpuContender(device, [products(device, 4096)[1]], blocking=False)
    with sampled(pci_bus_id(0)) as readings:
        contender.block(1.5, 5)
    figures = readings.figures()
    assert figures["readings"] >= 5
    assert (
        0
        < figures["sm_clock_mhz"]["min"]
        <= figures["sm_clock_mhz"]["median"]
        <= figures["sm_clock_mhz"]["max"]
    )
    assert figures["power_w"]["max"] > 1
    assert 0 < figures["temperature_c"]["max"] < 120


def in_tensorrt(folder: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    answer = folder / "answer.json"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [TENSORRT, str(ROOT / "tests/gpu/plain_tensorrt.py"), *arguments]
    subprocess.run(
        command, check=True, env={**variables, **environment, "ANSWER": str(answer)}, timeout=900
    )
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


@cache
def engine_of(model: str, folder: Path) -> Path:
    """Build an fp16 engine of a torchvision model, with golden inputs."""
    torch, torchvision = pytest.importorskip("torch"), pytest.importorskip("torchvision")
    torch.manual_seed(0)
    network, onnx, engine = (
        getattr(torchvision.models, model)().eval(),
        folder / f"{model}.onnx",
        folder / model,
    )
    example = torch.randn(BATCH, 3, 224, 224)
    axes = {"image": {0: "batch"}, "scores": {0: "batch"}}
    torch.onnx.export(
        network, (example,), str(onnx), dynamo=False, opset_version=17, input_names=["image"],
        output_names=["scores"], dynamic_axes=axes,
    )  # fmt: skip
    in_tensorrt(folder, "build", str(onnx), str(engine), "fp16", "1", str(BATCH), "16")
    save_case(folder / f"{model}.npz", {"image": Tensor(example.numpy(), "float32")}, {})
    return engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


def bench_job(model: str, engine: Path, folder: Path, **bench: Any) -> Any:
    from engine_jobs import stage_job

    from buildsys.project.model import model_fields

    spec = model_fields({
        "model": "m",
        "source": {"torchvision": model},
        "inputs": {"image": {"shape": ["batch", 3, 224, 224]}},
        "dims": {"batch": {"min": 1, "opt": BATCH, "max": 16}},
        "engines": [{"name": "e", "backend": "tensorrt", "precision": "fp16", "typing": "weak"}],
        "bench": {"duration": 1.0, "warmup": 0.3, "noise": None, **bench},
    })  # fmt: skip
    for place, file in (
        ("m/engine/e/engine.engine", engine),
        ("m/reference/opt.npz", engine.with_name(f"{model}.npz")),
    ):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / place)
    job = stage_job(spec, "bench", folder)
    if sys.executable != TENSORRT:
        return replace(job, toolchain=Toolchain("tensorrt", Path(TENSORRT), {}))
    return job


@of_libraries
@with_tensorrt
@pytest.mark.parametrize("model", ["resnet18", "resnet50"])
def test_the_harness_adds_nothing_to_a_bare_loop(model: str, folder: Path) -> None:
    engine = engine_of(model, folder)
    options = bench_job(model, engine, folder / "options").options["engine"]
    case = str(folder / f"{model}.npz")
    rounds = in_tensorrt(folder, "compare", str(engine), case, ENGINE_OPTIONS=json.dumps(options))

    def overhead(ours: str, bare: str) -> float:
        """Return the median ratio of neighbours: the clocks of a GPU drift between rounds."""
        return statistics.median(
            mine / other for mine, other in zip(rounds[ours], rounds[bare], strict=True)
        )

    assert overhead("engine.gpu", "bare.queued") <= 1.02
    assert overhead("engine_cuda_graph.gpu", "bare_graph.queued") <= 1.02


@of_libraries
@with_tensorrt
@pytest.mark.parametrize("model", ["resnet18", "resnet50"])
def test_an_engine_and_its_baselines_are_timed_in_one_run(
    model: str, folder: Path, tmp_path: Path
) -> None:
    from buildsys.stages.bench import stage as bench

    engine = engine_of(model, folder)
    compiled = os.environ.get("BUILDSYS_GPU_COMPILE", model == "resnet18" and "1")
    baselines = ("torch", "torch_cuda_graph", *(("torch_compile",) if compiled == "1" else ()))
    if importlib.util.find_spec("torch_tensorrt"):
        baselines = (*baselines, "torch_tensorrt")
    job = bench_job(model, engine, tmp_path, cuda_graph=(False, True), baselines=baselines)
    result = bench.run(job)
    assert result.status == "passed"
    figures = json.loads(json.dumps(result.figures))
    case = figures["cases"]["opt"]
    contenders = case["contenders"]
    assert set(contenders) == {"engine", "engine_cuda_graph", *baselines}, figures.get("left_out")
    for contender in contenders.values():
        assert contender["count"] == len(contender["samples_ms"])
        assert contender["gpu"]["count"] == len(contender["gpu"]["samples_ms"]) >= 10
    assert case["gpu"]["sm_clock_mhz"]["median"] > 0
    assert (
        contenders["engine"]["memory_taken_bytes"] > contenders["engine"]["device_memory_bytes"] > 0
    )
    graph = contenders["engine_cuda_graph"]["gpu"]["p50_ms"]
    assert graph <= contenders["engine"]["gpu"]["p50_ms"] * 1.02


@of_libraries
@with_tensorrt
@pytest.mark.parametrize(
    "bench_fields",
    [
        {"transfers": "both"},
        {"wait": "block"},
        {"transfers": "in", "cuda_graph": (True,)},
        {"in_flight": 3},
    ],
)
def test_each_way_of_timing_works(
    bench_fields: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    from buildsys.stages.bench import stage as bench

    engine = engine_of("resnet18", folder)
    job = bench_job(
        "resnet18", engine, tmp_path, **{"duration": 0.3, "baselines": ("torch",), **bench_fields}
    )
    figures = bench.run(job).figures
    own = next(iter(figures["cases"]["opt"]["contenders"].values()))
    assert own["gpu"]["p50_ms"] > 0
    assert set(figures["settings"]) >= {"transfers", "in_flight", "wait"}
