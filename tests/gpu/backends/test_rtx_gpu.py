"""CUDA on any NVIDIA GPU, and TensorRT-RTX engines on supported ones."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_marks import DRIVER, ON_GPU

from buildsys.errors import StageError, Unavailable

ROOT = Path(__file__).parents[3]
RTX = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
HERE = DRIVER.gpus[0].compute_capability if DRIVER.gpus else ""
pytestmark = ON_GPU
on_rtx = pytest.mark.skipif(HERE not in RTX, reason="TensorRT-RTX does not run on this GPU")
not_on_rtx = pytest.mark.skipif(HERE in RTX, reason="TensorRT-RTX runs on this GPU")


def build_engine(folder: Path, **fields: Any) -> tuple[Path, dict[str, Any], Any]:
    pytest.importorskip("tensorrt_rtx")
    from engine_jobs import engine_options, request
    from small_graphs import conv_bn, write

    from buildsys.backends.tensorrt_rtx import backend as tensorrt_rtx

    asked = request(write(folder, conv_bn()), folder, engine_options("tensorrt_rtx", **fields))
    tensorrt_rtx.build(asked)
    return asked.engine, dict(asked.options), tensorrt_rtx


@not_on_rtx
def test_a_gpu_unknown_to_tensorrt_rtx_is_unavailable(tmp_path: Path) -> None:
    engine, options, backend = build_engine(tmp_path)
    with pytest.raises(Unavailable, match=f"compute capability {HERE}"):
        backend.load(engine, options)
    with pytest.raises(Unavailable):
        backend.prepare({**options, "compute_capabilities": ["current"]})


@on_rtx
def test_an_engine_computes_the_same_as_onnxruntime_at_every_batch(tmp_path: Path) -> None:
    from engine_jobs import random_x

    from buildsys.backends.onnxruntime.session import OrtGraph

    engine, options, backend = build_engine(
        tmp_path, compute_capabilities=(HERE,), flags={"tf32": False}
    )
    reference = OrtGraph(tmp_path / "model.onnx")
    session = backend.load(engine, options)
    for batch in (1, 5, 8, 2):
        inputs = random_x(batch, seed=batch)
        expected = reference.run(inputs)["y"].array
        assert (
            np.abs(session.run(inputs)["y"].array - expected).max() <= 1e-3 * np.abs(expected).max()
        )
    call = session.bind(random_x(2))
    call()
    call()
    with pytest.raises(StageError, match="no optimization profile of the engine holds the shapes"):
        session.run(random_x(9))
    assert session.describe("fp32")["device_memory_bytes"] >= 0
    session.close()


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float32", (5, 3, 8, 16)), ("float16", (4, 50)), ("float32", (1, 1))]
)
def test_the_shipped_plugin_computes_on_the_given_stream(
    dtype: str, shape: tuple[int, ...]
) -> None:
    trt, torch = pytest.importorskip("tensorrt_rtx"), pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location(
        "clip_plugin", ROOT / "plugins/ops/scaled_clip_plugin.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
    outputs = [torch.full_like(x, 7), torch.zeros(shape, dtype=torch.bool, device="cuda")]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    kind = {"float32": trt.DataType.FLOAT, "float16": trt.DataType.HALF}[dtype]
    described = [describe(trt, shape, kind), describe(trt, shape, trt.DataType.BOOL)]
    addresses = [output.data_ptr() for output in outputs]
    plugin = module.ScaledClip(2.0, (-1.0, 1.0))
    plugin.enqueue(described[:1], described, [x.data_ptr()], addresses, 0, stream.cuda_stream)
    stream.synchronize()
    assert torch.equal(outputs[0], (x * 2).clamp(-1, 1))
    assert torch.equal(outputs[1], (x * 2 > -1) & (x * 2 < 1))


def describe(trt: Any, shape: tuple[int, ...], kind: Any) -> Any:
    tensor = trt.PluginTensorDesc()
    tensor.dims, tensor.type, tensor.format = shape, kind, trt.TensorFormat.LINEAR
    return tensor
