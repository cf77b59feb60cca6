"""What needs a GPU: the driver's calls on any NVIDIA GPU, TensorRT-RTX engines on those that it supports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buildsys.backends.cuda_driver import Device, find_driver
from buildsys.errors import StageError, Unavailable

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

DRIVER = find_driver()
RTX = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
HERE = DRIVER.gpus[0].compute_capability if DRIVER.gpus else ""
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not DRIVER.gpus, reason=f"no GPU: {DRIVER.missing}")]
on_rtx = pytest.mark.skipif(HERE not in RTX, reason="TensorRT-RTX does not run on this GPU")
not_on_rtx = pytest.mark.skipif(HERE in RTX, reason="TensorRT-RTX runs on this GPU")


def test_the_driver_describes_its_gpus() -> None:
    gpu = DRIVER.gpus[0]
    assert gpu.name
    assert gpu.memory_bytes > 1 << 30
    assert tuple(map(int, gpu.compute_capability.split("."))) >= (5, 0)
    assert float(DRIVER.cuda_version) >= 11
    assert DRIVER.missing == ""


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_what_goes_to_the_gpu_comes_back(dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 2, (3, 1000)).astype(dtype)
    device = Device(0)
    with device.current():
        buffer = device.allocate(values.nbytes)
        buffer.upload(values[:, ::-1])
        found = np.empty_like(values)
        buffer.download(found)
        assert np.array_equal(found, values[:, ::-1])
        device.free(buffer)
    device.close()
    device.close()


def test_empty_tensors_and_too_large_ones() -> None:
    device = Device(0)
    with device.current():
        buffer = device.allocate(0)
        buffer.upload(np.empty(0, np.float32))
        with pytest.raises(ValueError, match="8 bytes do not fit a device buffer of 0"):
            buffer.upload(np.zeros(1))
    device.close()


def test_memory_is_given_back() -> None:
    size = int(DRIVER.gpus[0].memory_bytes * 0.4)
    for _ in range(4):  # more than fits at once
        device = Device(0)
        with device.current():
            device.allocate(size)
        device.close()


def test_a_failing_call_names_itself() -> None:
    device = Device(0)
    with device.current(), pytest.raises(StageError, match="cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(1 << 50)
    device.close()


def build_engine(folder: Path, **fields: Any) -> tuple[Path, dict[str, Any], Any]:
    pytest.importorskip("tensorrt_rtx")
    from engine_jobs import engine_options, request
    from small_graphs import conv_bn, write

    from buildsys.backends import tensorrt_rtx

    asked = request(write(folder, conv_bn()), folder, engine_options("tensorrt_rtx", **fields))
    tensorrt_rtx.build(asked)
    return asked.engine, dict(asked.options), tensorrt_rtx


@not_on_rtx
def test_a_gpu_that_tensorrt_rtx_does_not_know_is_unavailable(tmp_path: Path) -> None:
    engine, options, backend = build_engine(tmp_path)
    with pytest.raises(Unavailable, match=f"compute capability {HERE}"):
        backend.load(engine, options)
    with pytest.raises(Unavailable):
        backend.prepare({**options, "compute_capabilities": ["current"]})


@on_rtx
def test_an_engine_gives_what_onnxruntime_gives_at_every_batch(tmp_path: Path) -> None:
    from engine_jobs import random_x

    from buildsys.backends.ort_session import OrtGraph

    engine, options, backend = build_engine(tmp_path, compute_capabilities=(HERE,), flags={"tf32": False})
    reference = OrtGraph(tmp_path / "model.onnx")
    session = backend.load(engine, options)
    for batch in (1, 5, 8, 2):
        inputs = random_x(batch, seed=batch)
        expected = reference.run(inputs)["y"].array
        assert np.abs(session.run(inputs)["y"].array - expected).max() <= 1e-3 * np.abs(expected).max()
    call = session.bind(random_x(2))
    call()
    call()
    with pytest.raises(StageError, match="no optimization profile of the engine holds the shapes"):
        session.run(random_x(9))
    assert session.describe()["device_memory_bytes"] >= 0
    backend.unload(session)


@on_rtx
def test_the_profile_that_fits_is_chosen(tmp_path: Path) -> None:
    from engine_jobs import random_x

    ranges = tuple({"x": {"min": (n, 3, 8, 8), "opt": (n, 3, 8, 8), "max": (n, 3, 8, 8)}} for n in (1, 4))
    engine, options, backend = build_engine(tmp_path, compute_capabilities=(HERE,), profiles=ranges)
    session = backend.load(engine, options)
    assert [session.run(random_x(batch))["y"].shape for batch in (4, 1, 4)] == [(4, 5), (1, 5), (4, 5)]
    backend.unload(session)


@on_rtx
@pytest.mark.parametrize("flag", ["refit", "strip_plan"])
def test_flags_that_need_a_gpu_build_with_one(tmp_path: Path, flag: str) -> None:
    engine, _, _ = build_engine(tmp_path, compute_capabilities=(HERE,), flags={flag: True})
    assert engine.stat().st_size > 1000
