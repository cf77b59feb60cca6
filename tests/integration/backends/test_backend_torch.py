"""Engines of PyTorch itself: numbers, new weights, files, and what is refused.

Compiling takes 20 s of CPU time, so the tests share two packages.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_jobs import captured_program, random_x
from torch._inductor import config, standalone_compile
from torch_programs import (
    build_recorded,
    build_request,
    captured_by_hand,
    expected,
    output_of,
    record_of,
    with_doubled_weights,
)

from buildsys.backends.interface import load_backend
from buildsys.backends.torch.gpu_programs import compiler_cache, symbolic_arguments
from buildsys.backends.torch.programs import load_program, matrix_types, operator
from buildsys.backends.torch.strides import free_strides
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.backend_registry import Record
from buildsys.system.code_kinds import NEUTRAL, code_kind
from buildsys.system.compatibility import built_with, machine_reasons, this_machine

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler, on its own code
backend = load_backend("torch")


def outputs(engine: Path, inputs: dict[str, Tensor]) -> np.ndarray:
    session = backend.load(engine, {"threads": 1})
    try:
        (output,) = session.run(inputs).values()
        session.bind(inputs)()
        return output.array
    finally:
        session.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured_program(tmp_path_factory.mktemp("program"), "torch", "Masked")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, source: Path) -> tuple[Path, dict[str, Any]]:
    asked = build_request(tmp_path_factory.mktemp("torch"), source)
    return asked.engine, build_recorded(asked)


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_an_engine_computes_what_the_program_does(built: Any, source: Path, batch: int) -> None:
    inputs = random_x(batch)
    np.testing.assert_allclose(
        outputs(built[0], inputs), expected(source, inputs), rtol=1e-3, atol=1e-5
    )


def test_memory_in_another_order_is_read_in_its_order(built: Any, source: Path) -> None:
    array = random_x(2)["x"].array
    channels_last = np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    inputs = {"x": Tensor(channels_last, "float32")}
    np.testing.assert_allclose(
        outputs(built[0], inputs), expected(source, inputs), rtol=1e-3, atol=1e-5
    )


def test_what_a_package_would_not_check_is_refused(built: Any) -> None:
    session = backend.load(built[0], {"threads": 1})
    x = random_x(2)["x"].array
    for array, reason in [
        (x.astype(np.float64), "the input x is float64, and the engine needs float32"),
        (x[:, :, 1:], "the input x has the shape"),
        (np.repeat(x, 5, 0), "batch 1 to 8"),
        (x[:, :1], "the input x has the shape"),
    ]:
        with pytest.raises(StageError, match=reason):
            session.run({"x": Tensor(array, str(array.dtype))})
    with pytest.raises(StageError, match="the engine needs the input x"):
        session.run({})
    session.close()


def test_new_weights_go_into_the_earlier_package(built: Any, source: Path, tmp_path: Path) -> None:
    source = with_doubled_weights(source, tmp_path)
    asked = replace(build_request(tmp_path / "new", source), earlier=(record_of(built[0]),))
    figures = backend.build(asked)
    assert figures["refitted_from"]["started"] == "now"
    assert asked.engine.read_bytes() == built[0].read_bytes()
    inputs = random_x(2)
    result = outputs(asked.engine, inputs)
    np.testing.assert_allclose(result, expected(source, inputs), rtol=1e-3, atol=1e-5)
    assert not np.allclose(result, outputs(built[0], inputs), atol=1e-3)


def test_bfloat16_computes_in_bfloat16(source: Path, tmp_path: Path) -> None:
    asked = build_request(tmp_path, source, precision="bf16")
    figures = backend.build(asked)
    assert figures["precision_shares"]["layers"] == {"bfloat16": 1.0}
    inputs = random_x(3)
    error = np.abs(outputs(asked.engine, inputs) - expected(source, inputs)).max()
    assert 1e-5 < error < 0.05


def test_damaged_files_are_refused(built: Any, tmp_path: Path) -> None:
    package, weights = built[0].read_bytes(), built[0].with_suffix(".weights").read_bytes()
    engine = tmp_path / "engine.pt2"
    for content, others, reason in [
        (package[: len(package) // 2], weights, "it is damaged, or no package of AOTInductor"),
        (package, weights[:100], "PyTorch cannot read engine.weights"),
    ]:
        engine.write_bytes(content)
        engine.with_suffix(".weights").write_bytes(others)
        with pytest.raises(StageError, match=reason):
            backend.load(engine, {"threads": 0})
    torch.save({}, engine.with_suffix(".weights"))
    with pytest.raises(StageError, match=r"engine\.pt2 does not take its weights"):
        backend.load(engine, {"threads": 0})
    values = torch.load(built[0].with_suffix(".weights"))
    name = next(name for name, value in values.items() if value.dim() > 1)
    torch.save({**values, name: values[name][:1]}, engine.with_suffix(".weights"))
    with pytest.raises(StageError, match=f"is of another engine: {name} is "):
        backend.load(engine, {"threads": 0})


def test_a_package_of_another_torch_or_processor_is_refused(
    built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = built_with("torch", backend.device({}))
    assert not list(machine_reasons(Record("torch", {"built_with": facts})))
    other = {**facts, "torch": "2.3.0", "instructions": [*facts["instructions"], "sve9"]}
    problems = [
        reason.problem for reason in machine_reasons(Record("torch", {"built_with": other}))
    ]
    assert "it was built with PyTorch 2.3.0" in problems[0]
    assert problems[1] == "it was compiled for processors with sve9"
    on_gpu = {"settings": {"mode": "compile"}, "built_with": {**facts, "compute_capability": "9.0"}}
    machine = replace(this_machine(), gpus=())
    (reason,) = machine_reasons(Record("torch", on_gpu), machine)
    assert reason.problem.startswith("it needs an NVIDIA GPU")
    assert reason.remedy == "run it on a GPU of compute capability 9.0"
    machine = replace(machine, gpus=({"name": "T4", "compute_capability": "7.5"},))
    (reason,) = machine_reasons(Record("torch", on_gpu), machine)
    assert reason.problem == "it was built for compute capability 9.0, and this T4 has 7.5"
    monkeypatch.setattr("torch.__version__", "9.9.9")
    with pytest.raises(StageError, match=r"was compiled with PyTorch .*, and this is 9\.9\.9"):
        backend.load(built[0], {"threads": 0})
    monkeypatch.undo()
    monkeypatch.setattr("buildsys.backends.torch.aot_inductor.engine_instructions", list)
    with pytest.raises(StageError, match="was compiled for processors with"):
        backend.load(built[0], {"threads": 0})


@pytest.mark.parametrize("change", [lambda c, x: c.add_(x[:1]), lambda c, x: c[0].mul_(2)])
def test_networks_with_state_are_refused(change: Any, tmp_path: Path) -> None:
    class Keeps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(1, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            change(self.kept, x)
            return x + self.kept

    program = torch.export.export(Keeps().eval(), (torch.zeros(2, 3),), strict=False)
    ports = {"inputs": [{"name": "x", "dtype": "float32", "shape": [2, 3]}], "outputs": []}
    source = tmp_path / "p.pt2"
    torch.export.save(program, source, extra_files={"ports.json": json.dumps(ports)})
    with pytest.raises(StageError, match="forward changes the buffer kept; an engine keeps no"):
        backend.build(build_request(tmp_path, source))


def test_without_a_compiler_an_engine_is_unavailable(source: Path, tmp_path: Path) -> None:
    without = config.patch({"cpp.cxx": ("no-compiler",)})
    with without, pytest.raises(Unavailable, match=r"needs a C\+\+ compiler, and there is none"):
        backend.build(build_request(tmp_path, source))


class Strided(torch.nn.Module):
    """Views an image that has just been convolved, and multiplies rows in another order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.weights = torch.nn.Parameter(torch.randn(16, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).view(x.shape[0], 64, 16)
        y, _ = self.attention(y, y, y, need_weights=False)
        return y.transpose(0, 1) @ self.weights


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-5), ("fp16", 5e-3), ("bf16", 5e-2)]
)
def test_strides_make_no_small_products_and_no_view_impossible(
    precision: str, tolerance: float, tmp_path: Path
) -> None:
    source = captured_by_hand(tmp_path, Strided())
    asked = build_request(tmp_path / "e", source, mode="cuda_graph", precision=precision)
    program, _ = load_program(asked)
    inputs = random_x(4)
    right = expected(source, inputs)
    assert np.abs(output_of(program, inputs) - right).max() < tolerance * np.abs(right).max()
    if precision != "fp32":
        assert program.state_dict["program.conv.weight"].stride()[1] == 1
    for parameter in program.state_dict.values():
        parameter.requires_grad_(False)  # else PyTorch folds for the gradient's sake
    simple = program.run_decompositions()
    products = [node for node in simple.graph.nodes if operator(node) == "bmm"]
    assert len(products) == 2  # inside of the attention
    # which reads its inputs where the layer in front of it has written them
    assert "clone" not in map(operator, program.graph.nodes)


def compile_for_all_sizes(program: torch.export.ExportedProgram) -> tuple[Any, Any]:
    """Compile a program as for a GPU; return the code and the last argument, the input."""
    values = symbolic_arguments(program)
    with torch.inference_mode():
        code = standalone_compile(program.graph_module, values, dynamic_shapes="from_graph")
    return code, values[-1]


def test_code_for_all_sizes_has_symbols_for_dims_only(tmp_path: Path) -> None:
    source = captured_by_hand(tmp_path, Strided())
    program, _ = load_program(build_request(tmp_path / "e", source, mode="compile"))
    compiled, x = compile_for_all_sizes(program)
    assert [*map(str, x.fake_mode.shape_env.var_to_range)] == [str(x.shape[0])]
    for batch in (2, 3):
        inputs = random_x(batch)
        (output,) = compiled(*program.state_dict.values(), torch.from_numpy(inputs["x"].array))
        right = expected(source, inputs)
        np.testing.assert_allclose(output.detach(), right, rtol=1e-4, atol=1e-5)


def test_dims_of_equal_sizes_remain_two() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(0, 1).cumsum(0)

    sizes = {axis: torch.export.Dim.DYNAMIC(min=2, max=8) for axis in (0, 1)}
    program = torch.export.export(Rows(), (torch.zeros(4, 4, 3),), dynamic_shapes=(sizes,))
    compiled, _ = compile_for_all_sizes(program)
    x = torch.rand(2, 5, 3)
    torch.testing.assert_close(compiled(x)[0], Rows()(x))


class Volumes(torch.nn.Module):
    """Convolves volumes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv3d(1, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x[:, None])
        return y.flatten(1)


class Upcast(Volumes):
    """Computes in float32 in between, as networks do for softmax and norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(768), torch.nn.Linear(768, 768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.fft.fft(super().forward(x)).abs()
        scaled = (y.float() * y.float().pow(2).mean(-1, keepdim=True).rsqrt()).to(y.dtype)
        z = self.linear(self.norm(scaled)) @ torch.eye(768, 8)
        z = z + torch.zeros_like(z) * torch.finfo(z.dtype).min  # as masks of attention do
        z = torch.einsum("ij,kj->ik", z.float().softmax(-1), z)
        grid = torch.linspace(-1, 1, 8).view(1, 2, 2, 2).expand(x.shape[0], 2, 2, 2)
        sampled = torch.nn.functional.grid_sample(x, grid, align_corners=True)
        return z + sampled.mean((1, 2, 3))[:, None]


@pytest.mark.parametrize("network", [Volumes, Upcast])
def test_types_follow_what_operators_need(network: type[torch.nn.Module], tmp_path: Path) -> None:
    source = captured_by_hand(tmp_path, network())
    asked = build_request(tmp_path / "e", source, mode="compile", precision="fp16")
    program, inputs = load_program(asked)[0], random_x(4)
    np.testing.assert_allclose(output_of(program, inputs), expected(source, inputs), atol=5e-3)
    nodes = [*program.graph.nodes]
    assert {*matrix_types(nodes)} == {"float16"}
    assert "grid_sampler" not in map(operator, nodes)  # cuDNN's cannot be traced


def test_a_cache_for_compiling_has_nobodys_code_and_is_left_behind() -> None:
    def caches() -> set[str]:
        return {os.environ[f"{name}_CACHE_DIR"] for name in ("TORCHINDUCTOR", "TRITON")}

    with compiler_cache():
        folders = caches()
        assert {code_kind(f"{folder}/ab/code.py") for folder in folders} == {NEUTRAL}
    assert not any(map(os.path.exists, folders))
    # compile processes inherit these
    assert not folders & caches()


class OwnStrides(torch.nn.Module):
    """Reads the memory of an image that has just been convolved."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).as_strided((x.shape[0], 4, 4), (1024, 64, 1))


def test_memory_that_the_network_reads_itself_keeps_its_order(tmp_path: Path) -> None:
    source = captured_by_hand(tmp_path, OwnStrides())
    asked = build_request(tmp_path / "e", source, mode="cuda_graph", precision="fp16")
    inputs = random_x(4)
    output = output_of(load_program(asked)[0], inputs)
    np.testing.assert_allclose(output, expected(source, inputs), atol=5e-3)


def test_weights_in_the_order_of_the_network_are_converted(tmp_path: Path) -> None:
    network = OwnStrides().to(memory_format=torch.channels_last)
    asked = build_request(tmp_path / "e", captured_by_hand(tmp_path, network), precision="fp16")
    program = load_program(asked)[0]
    assert program.state_dict["program.conv.weight"].stride()[1] == 1


class Split(torch.nn.Module):
    """Splits rows into heads, perhaps not as attention does."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        merged = x.reshape(5, 3 * 8, 8).transpose(0, 1)
        return merged.reshape(3, self.heads, 5, self.size).square()


@pytest.mark.parametrize(("heads", "size"), [(8, 8), (4, 16), (16, 4)])
def test_only_heads_of_attention_are_split_in_place(heads: int, size: int) -> None:
    network, x = Split(heads, size), torch.randn(5, 3, 64)
    program = torch.export.export(network, (x,), strict=False)
    assert free_strides(program)
    np.testing.assert_array_equal(program.module()(x), network(x))
    assert ("permute" in map(operator, program.graph.nodes)) == (size == 8)
