"""Engines of PyTorch on a GPU: numbers, sizes, streams, new weights, and what is refused."""

import json
import zipfile
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_jobs import captured_program, random_x
from gpu_marks import ON_GPU
from torch_programs import (
    build_recorded,
    build_request,
    captured_by_hand,
    expected,
    record_of,
    with_doubled_weights,
)

from buildsys.backends.interface import BuildRequest, DeviceTensor, load_backend
from buildsys.backends.measurement import GpuTiming
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor

# the compiler and CUDA graphs of PyTorch warn about PyTorch
pytestmark = [*ON_GPU, pytest.mark.filterwarnings("ignore")]
MODES = ("compile", "cuda_graph")
backend = load_backend("torch")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured_program(tmp_path_factory.mktemp("program"), "torch", "Masked")


@pytest.fixture(scope="module", params=MODES)
def built(
    tmp_path_factory: pytest.TempPathFactory, source: Path, request: pytest.FixtureRequest
) -> tuple[BuildRequest, dict[str, Any]]:
    asked = build_request(tmp_path_factory.mktemp("e"), source, mode=request.param, tf32=False)
    backend.prepare(asked.options)
    return asked, build_recorded(asked)


@pytest.fixture
def session(built: Any) -> Any:
    with closing(backend.load(built[0].engine, built[0].options)) as loaded:
        yield loaded


def test_every_size_of_dims_is_computed(built: Any, session: Any, source: Path) -> None:
    assert built[1]["engine_layers"]  # kernels
    assert built[1]["precision_shares"]["layers"] == {"float32": 1.0}
    for batch in (2, 1, 8, 3, 2):
        inputs = random_x(batch)
        (output,) = session.run(inputs).values()
        np.testing.assert_allclose(output.array, expected(source, inputs), rtol=1e-3, atol=1e-5)
        session.bind(inputs)()
    for array in (random_x(2)["x"].array[:, :, 1:], np.zeros((9, 3, 8, 8), np.float32)):
        with pytest.raises(StageError, match="the input x has the shape"):
            session.run({"x": Tensor(array, "float32")})


def test_calls_on_a_stream_use_memory_of_the_caller(session: Any, source: Path) -> None:
    stream, kept, results = torch.cuda.Stream(), [], []

    def allocate(name: str, dtype: str, shape: tuple[int, ...]) -> DeviceTensor:
        memory = torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
        kept.append(memory)
        return DeviceTensor(memory.data_ptr(), shape, dtype, memory)

    for batch in (2, 4, 2):
        inputs = random_x(batch)
        x = torch.from_numpy(inputs["x"].array).cuda()
        on_device = {"x": DeviceTensor(x.data_ptr(), tuple(x.shape), "float32", x)}
        kept.append(x)
        own = stream.cuda_stream if batch == 2 else None
        results.append((inputs, *session.enqueue(on_device, allocate, own).values()))
    stream.synchronize()
    for inputs, result in results:
        values = result.array.cpu().numpy()
        np.testing.assert_allclose(values, expected(source, inputs), rtol=1e-3, atol=1e-5)


def test_sessions_in_flight_are_timed_by_both_clocks(session: Any) -> None:
    timing = GpuTiming(transfers="both", in_flight=2)
    (contender,) = session.contenders(random_x(2), timing).values()
    samples = contender.block(0.05, 10)
    assert len(samples.wall_ns) >= 10
    assert min(samples.gpu_ns) > 0
    layers = session.kernel_times(random_x(2))
    assert sum(layer["share"] for layer in layers) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_keeps_its_workspaces(mode: str, tmp_path: Path) -> None:
    """torch.compile frees the workspaces of cuBLAS when it captures graphs of its own."""

    class Products(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [8, 4096, 64, 4096, 8]  # long sums are split, with partial sums in workspaces
            layers = [torch.nn.Linear(*pair) for pair in pairwise(sizes)]
            self.layers = torch.nn.Sequential(*layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    source = captured_by_hand(tmp_path, Products())
    asked = build_request(tmp_path / "e", source, mode=mode, precision="fp16")
    backend.build(asked)
    inputs = random_x(4)
    with closing(backend.load(asked.engine, asked.options)) as session:
        (before,) = session.run(inputs).values()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        others = [torch.full((2**26,), float("nan"), device="cuda") for _ in range(4)]
        (after,) = session.run(inputs).values()
    del others
    np.testing.assert_array_equal(before.array, after.array)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("mode", MODES)
def test_lower_precisions(mode: str, precision: str, source: Path, tmp_path: Path) -> None:
    asked = build_request(tmp_path, source, mode=mode, precision=precision)
    figures = backend.build(asked)
    long = {"fp16": "float16", "bf16": "bfloat16"}[precision]
    assert figures["precision_shares"]["layers"] == {long: 1.0}
    inputs = random_x(3)
    with closing(backend.load(asked.engine, asked.options)) as session:
        (output,) = session.run(inputs).values()
    assert 1e-5 < np.abs(output.array - expected(source, inputs)).max() < 0.05


@pytest.mark.parametrize("mode", MODES)
def test_tensors_that_a_network_makes_are_on_the_gpu(mode: str, tmp_path: Path) -> None:
    """A mask; and a view of what attention returns, in another order than a CPU's."""

    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = x.flatten(2).view(x.shape[0], 3, 4, 16).transpose(1, 2)
            place = torch.arange(3, device=x.device)
            mask = place[None] <= place[:, None]
            y = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, mask)
            return y.transpose(1, 2).contiguous().view(x.shape[0], 192)

    source = captured_by_hand(tmp_path, Attention())
    asked = build_request(tmp_path / "e", source, mode=mode, tf32=False)
    backend.build(asked)
    with closing(backend.load(asked.engine, asked.options)) as session:
        for inputs in map(random_x, (4, 3)):
            (output,) = session.run(inputs).values()
            np.testing.assert_allclose(output.array, expected(source, inputs), atol=1e-4)


def test_new_weights_need_no_new_code(built: Any, source: Path, tmp_path: Path) -> None:
    other, mode = with_doubled_weights(source, tmp_path), built[0].options["mode"]
    asked = build_request(tmp_path / "new", other, mode=mode, tf32=False)
    asked = replace(asked, earlier=(record_of(built[0].engine),))
    assert ("refitted_from" in backend.build(asked)) == (mode == "compile")
    inputs = random_x(2)
    with closing(backend.load(asked.engine, asked.options)) as session:
        (output,) = session.run(inputs).values()
    np.testing.assert_allclose(output.array, expected(other, inputs), rtol=1e-3, atol=1e-5)


def test_engines_of_another_gpu_or_damaged_ones_are_refused(built: Any, tmp_path: Path) -> None:
    engine = tmp_path / "engine.pt2"
    with zipfile.ZipFile(built[0].engine) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    interface = json.loads(parts["interface.json"])
    weights = built[0].engine.with_suffix(".weights")
    if weights.exists():
        engine.with_suffix(".weights").write_bytes(weights.read_bytes())
    for change, reason in [
        ({"compute_capability": "1.0"}, "was built for compute capability 1.0, and this GPU has"),
        ({"torch": "2.0.0"}, "was compiled with PyTorch 2.0.0, and this is"),
    ]:
        with zipfile.ZipFile(engine, "w") as archive:
            for name, content in parts.items():
                is_interface = name == "interface.json"
                text = json.dumps({**interface, **change}) if is_interface else content
                archive.writestr(name, text)
        with pytest.raises(StageError, match=reason):
            backend.load(engine, built[0].options)
    engine.write_bytes(built[0].engine.read_bytes()[:1000])
    with pytest.raises(StageError, match="it is damaged, or no engine of PyTorch for a GPU"):
        backend.load(engine, built[0].options)


@pytest.mark.parametrize("mode", MODES)
def test_sizes_by_value_are_refused(mode: str, tmp_path: Path) -> None:
    class Positive(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0]

    asked = build_request(tmp_path, captured_by_hand(tmp_path, Positive()), mode=mode)
    with pytest.raises(StageError, match=r"PyTorch cannot c(ompile|apture)"):
        backend.build(asked)
