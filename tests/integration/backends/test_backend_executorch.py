"""Engines of ExecuTorch: numbers, delegated operators, files, and what is refused.

The package is large, so ``[test]`` does not install it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_jobs import DIMS, INPUTS, calibration, captured_program, random_x

pytest.importorskip("executorch", reason="pip install 'buildsys[executorch]'")

from buildsys.backends.interface import BuildRequest, load_backend
from buildsys.errors import StageError
from buildsys.manifest.schema.engines import engine_spec
from buildsys.onnx_graphs.tensors import Tensor

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler, on its own code
backend = load_backend("executorch")


def options(**fields: Any) -> dict[str, Any]:
    precision = fields.pop("precision", "fp32")  # int8 would need calibration data in the manifest
    engine = {"name": "e", "backend": "executorch", **fields}
    return {**engine_spec("executorch").model_validate(engine).model_dump(), "precision": precision}


def captured(folder: Path, name: str, inputs: Any = INPUTS, dims: Any = DIMS) -> Path:
    return captured_program(folder, "executorch", name, inputs, dims)


def build(
    folder: Path, source: Path, inputs: Any = INPUTS, dims: Any = DIMS, **fields: Any
) -> tuple[BuildRequest, dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    asked = BuildRequest(
        "m",
        Path(),
        folder / "engine.pte",
        options(**fields),
        {name: {**tensor, "dtype": "float32"} for name, tensor in inputs.items()},
        dims,
        program=source,
        calibration=calibration(folder) if fields.get("precision") == "int8" else None,
    )
    backend.prepare(asked.options)
    return asked, backend.build(asked)


def run(engine: Path, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    session = backend.load(engine, options(threads=1))
    try:
        return session.run(inputs)
    finally:
        session.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured(tmp_path_factory.mktemp("program"), "Small")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Any:
    return build(tmp_path_factory.mktemp("executorch"), source)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("int8")
    source = captured(folder, "InvertedResidual")
    asked, figures = build(folder, source, precision="int8")
    return source, asked.engine, figures


def expected(source: Path, inputs: dict[str, Tensor]) -> np.ndarray:
    import torch

    found = torch.export.load(source).module()(torch.from_numpy(inputs["x"].array))
    return (found[0] if isinstance(found, tuple) else found).detach().numpy()


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_an_engine_computes_what_the_program_does(built: Any, source: Path, batch: int) -> None:
    inputs = random_x(batch)
    (found,) = run(built[0].engine, inputs).values()
    np.testing.assert_allclose(found.array, expected(source, inputs), rtol=1e-3, atol=1e-5)


def test_the_operators_of_the_delegate_are_counted(built: Any) -> None:
    delegated = built[1]["delegated"]
    assert delegated["share"] == 1.0
    assert delegated["operators"]["convolution"] == 2
    assert not delegated["portable"]
    assert not built[1]["messages"]


def test_an_int8_engine_is_quantized(quantized: Any) -> None:
    source, engine, figures = quantized
    assert "run the program once with the largest sizes" in figures["messages"][0]
    assert figures["precision_shares"]["layers"]["int8"] > 0.3
    inputs = random_x(4)
    (found,) = run(engine, inputs).values()
    one, other = found.array.ravel(), expected(source, inputs).ravel()
    assert one @ other >= 0.95 * np.linalg.norm(one) * np.linalg.norm(other)


def test_sizes_of_an_int8_engine_can_grow(quantized: Any) -> None:
    source, engine, _ = quantized
    session = backend.load(engine, options(precision="int8", threads=1))
    whole = random_x(8)["x"].array
    reference = expected(source, {"x": Tensor(whole, "float32")})
    for size in (1, 3, 8):
        inputs = {"x": Tensor(whole[:size], "float32")}
        for each in (session, session.duplicate()):
            (found,) = each.run(inputs).values()
            np.testing.assert_allclose(found.array, reference[:size], atol=0.2 * reference.max())


def test_two_dynamic_dims_that_xnnpack_refuses_name_delegate_none(tmp_path: Path) -> None:
    tokens = {"x": {"shape": ["batch", "tokens", 4]}, "mask": {"shape": ["batch", "tokens"]}}
    dims = {**DIMS, "tokens": {"min": 2, "opt": 4, "max": 16}}
    source = captured(tmp_path, "MaskedMean", tokens, dims)
    with pytest.raises(StageError, match="XNNPACK") as caught:
        build(tmp_path, source, tokens, dims)
    assert "use delegate: none, or fewer dynamic dimensions" in caught.value.hint
    asked, _ = build(tmp_path, source, tokens, dims, delegate="none")
    x, mask = np.ones((3, 5, 4), np.float32), np.ones((3, 5), np.float32)
    x[:, 3:], mask[:, 3:] = 7, 0
    (found,) = run(
        asked.engine, {"x": Tensor(x, "float32"), "mask": Tensor(mask, "float32")}
    ).values()
    np.testing.assert_allclose(found.array, np.ones((3, 4)), rtol=1e-6)


def test_equal_programs_give_equal_engines(tmp_path: Path, built: Any, source: Path) -> None:
    again, _ = build(tmp_path, source)
    assert again.engine.read_bytes() == built[0].engine.read_bytes()


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (
            random_x(9),
            r"has the shape \[9, 3, 8, 8\], but the engine was built for .* batch 1 to 8",
        ),
        ({}, "the engine needs the input x"),
        (random_x(2, "float16"), "the input x is float16, and the engine needs float32"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(built: Any, inputs: Any, problem: str) -> None:
    with pytest.raises(StageError, match=problem):
        run(built[0].engine, inputs)


def test_the_recorded_options_can_be_replaced(built: Any) -> None:
    for name, default in backend.RUN_OPTIONS.items():  # load_engine compares the types
        assert type(built[1]["settings"][name]) is type(default), name


def test_a_bound_call_and_another_session_run(built: Any) -> None:
    session = backend.load(built[0].engine, options())
    inputs = random_x(2)
    before = session.run(inputs)
    session.duplicate().run(random_x(3))
    session.bind(inputs)()
    for name, tensor in session.run(inputs).items():
        assert np.array_equal(tensor.array, before[name].array)


@pytest.mark.parametrize("cut", [10, 100, 0.5, 0.99])
def test_a_truncated_file_is_one_sentence(built: Any, tmp_path: Path, cut: float) -> None:
    content = built[0].engine.read_bytes()
    size = int(cut if cut > 1 else cut * len(content))
    (tmp_path / "engine.pte").write_bytes(content[:size])
    with pytest.raises(StageError, match=r"ExecuTorch cannot load engine\.pte"):
        backend.load(tmp_path / "engine.pte", options())


def test_a_program_of_another_format_version_is_one_sentence(built: Any, tmp_path: Path) -> None:
    content = bytearray(built[0].engine.read_bytes())
    content[4:8] = b"ET99"
    (tmp_path / "engine.pte").write_bytes(content)
    with pytest.raises(StageError, match=r"damaged, or of another version; build it again"):
        backend.load(tmp_path / "engine.pte", options())


def test_too_small_a_share_of_the_delegate_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="XNNPACK runs 0 % of the operators, and the minimum"):
        build(tmp_path, captured(tmp_path, "Cumulated"))


def test_an_operator_without_a_kernel_is_named(tmp_path: Path) -> None:
    source = captured(tmp_path, "NoKernel")
    with pytest.raises(StageError) as caught:
        build(tmp_path, source, delegated_share=0.0)
    assert "svd" in str(caught.value)
