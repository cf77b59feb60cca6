"""Engines of Core ML: the finished package, its weights and ranges, and what is refused.

Only macOS can run them. ``[test]`` does not install coremltools.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_jobs import DIMS, INPUTS, captured_program

pytest.importorskip("coremltools", reason="pip install 'buildsys[coreml]'")

from buildsys.backends.captured_program import PORTS
from buildsys.backends.coreml.conversion import (
    check_interface,
    compare_weights,
    convert,
    interface_of,
)
from buildsys.backends.coreml.package import read_engine
from buildsys.backends.interface import BuildRequest, GraphRefusedError, load_backend
from buildsys.errors import StageError
from buildsys.manifest.schema.engines import engine_spec

pytestmark = pytest.mark.filterwarnings("ignore")  # of the converter, on its own code
backend = load_backend("coreml")


def options(**fields: Any) -> dict[str, Any]:
    engine = {"name": "e", "backend": "coreml", **fields}
    return engine_spec("coreml").model_validate(engine).model_dump()


def captured(folder: Path, name: str, inputs: Any = INPUTS, **source: Any) -> Path:
    return captured_program(folder, "coreml", name, inputs, dims_of(inputs), **source)


def dims_of(inputs: Any) -> dict[str, Any]:
    used = {size for each in inputs.values() for size in each["shape"] if isinstance(size, str)}
    return dict.fromkeys(used, DIMS["batch"])


def request(folder: Path, source: Path, inputs: Any = INPUTS, **fields: Any) -> BuildRequest:
    folder.mkdir(exist_ok=True)
    typed = {name: {"dtype": "float32", **each} for name, each in inputs.items()}
    engine = folder / "engine.mlpackage.zip"
    return BuildRequest(
        "m", Path(), engine, options(**fields), typed, dims_of(inputs), program=source
    )


def build(folder: Path, source: Path, **fields: Any) -> tuple[Path, dict[str, Any]]:
    asked = request(folder, source, **fields)
    backend.prepare(asked.options)
    return asked.engine, backend.build(asked)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured(tmp_path_factory.mktemp("program"), "Small")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Any:
    return build(tmp_path_factory.mktemp("coreml"), source)


def test_the_package_has_the_inputs_and_ranges_of_the_manifest(built: Any) -> None:
    engine, figures = built
    facts = backend.describe(engine, options())
    (port,) = facts["inputs"]
    assert (port["name"], port["feature"], port["shape"]) == ("x", "x", ["batch", 3, 8, 8])
    (feature,) = read_engine(engine).spec.description.input
    array = feature.type.multiArrayType
    spans = [(each.lowerBound, each.upperBound) for each in array.shapeRange.sizeRanges]
    assert spans == [(1, 8), (3, 3), (8, 8), (8, 8)]
    assert list(array.shape) == [2, 3, 8, 8]
    assert facts["specification"] == 7
    assert facts["systems"] == "macOS 13 or iOS 16"
    assert facts["engine_layers"]["conv"] == 2
    assert facts["precision_shares"]["layers"] == {"float32": 1.0}
    assert figures["settings"]["compute_units"] == "all"


def test_every_weight_is_compared_also_with_its_batch_norm(built: Any) -> None:
    weights = built[1]["weights"]
    assert weights["compared"] == 4  # weights and biases of two convolutions
    assert "computed" not in weights
    assert weights["bytes"] > 8 * 8 * 9 * 4


def test_an_fp16_engine_computes_in_fp16_and_keeps_its_inputs(tmp_path: Path, source: Path) -> None:
    engine, figures = build(tmp_path, source, precision="fp16")
    facts = backend.describe(engine, options(precision="fp16"))
    assert facts["precision_shares"]["layers"]["float16"] > 0.9
    assert figures["weights"]["compared"] == 4
    assert {port["dtype"] for port in (*facts["inputs"], *facts["outputs"])} == {"float32"}


def test_enumerated_shapes_are_the_points_of_dims(tmp_path: Path, source: Path) -> None:
    engine, _ = build(tmp_path, source, shapes="enumerated")
    (feature,) = read_engine(engine).spec.description.input
    found = [list(one.shape) for one in feature.type.multiArrayType.enumeratedShapes.shapes]
    assert sorted(found) == [[1, 3, 8, 8], [2, 3, 8, 8], [8, 3, 8, 8]]


def test_equal_programs_give_equal_engines(tmp_path: Path, built: Any, source: Path) -> None:
    assert build(tmp_path, source)[0].read_bytes() == built[0].read_bytes()


def test_names_become_identifiers_and_types_stay_those_of_the_manifest(tmp_path: Path) -> None:
    inputs = {"x": {"shape": ["batch", 4]}}
    source = captured(tmp_path, "Nested", inputs)
    engine, _ = build(tmp_path / "e", source, inputs=inputs)
    facts = backend.describe(engine, options())
    names = {port["name"]: port["feature"] for port in facts["outputs"]}
    assert names == {"sum": "sum", "heads.0": "heads_0", "heads.1.0": "heads_1_0"}
    ports = {"inputs": [{"name": "a.b", "shape": [1]}], "outputs": [{"name": "a_b"}]}
    renamed = interface_of(ports, request(tmp_path / "e", source))
    assert [renamed[role][0]["feature"] for role in ports] == ["a_b", "a_b_2"]


def test_weights_of_another_network_are_found(tmp_path: Path, source: Path) -> None:
    inputs = {"x": {"shape": ["batch", 4]}}
    asked = request(tmp_path, captured(tmp_path, "Affine", inputs, kwargs={"features": 8}), inputs)
    converted = convert(asked, tmp_path)
    assert compare_weights(converted, "fp32")["compared"] == 2
    other = torch.nn.Parameter(converted.program.state_dict["linear.weight"] + 0.01)
    converted.program.state_dict["linear.weight"] = other
    with pytest.raises(
        StageError, match=r"of the package differs from the program's: they differ by up"
    ):
        compare_weights(converted, "fp32")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("0.weight", float("nan"), "the weight 0.weight of the program has NaN"),
        ("3.bias", -float("inf"), "the weight 3.bias of the program has a value of 1e.38 or more"),
        ("3.weight", 2e38, "the weight 3.weight of the program has a value of 1e.38 or more"),
        ("1.running_var", -1.0, "that coremltools computed has NaN"),  # as folded into 0.weight
    ],
)
def test_weights_that_are_no_numbers_are_refused(
    tmp_path: Path, source: Path, name: str, value: float, problem: str
) -> None:
    files = {PORTS: ""}
    program = torch.export.load(source, extra_files=files)
    program.state_dict[name].detach().view(-1)[-1] = value
    torch.export.save(program, tmp_path / "program.pt2", extra_files=files)
    with pytest.raises(StageError, match=problem):
        build(tmp_path, tmp_path / "program.pt2")


def test_other_inputs_are_found(built: Any) -> None:
    package = read_engine(built[0])
    package.interface["inputs"][0]["dtype"] = "int32"
    with pytest.raises(StageError, match=r"the package has the inputs .*'FLOAT32'.* instead of"):
        check_interface(package, package.interface)


def test_an_operator_without_a_conversion_is_named(tmp_path: Path) -> None:
    inputs = {"x": {"shape": ["batch", 4, 4]}}
    asked = request(tmp_path / "e", captured(tmp_path, "NoKernel", inputs), inputs)
    with pytest.raises(GraphRefusedError) as caught:
        backend.build(asked)
    assert "svd" in str(caught.value), str(caught.value)
    assert [node.operator for node in caught.value.nodes] == ["aten::linalg_svdvals"]


def test_the_recorded_options_can_be_replaced(built: Any) -> None:
    for name, default in backend.RUN_OPTIONS.items():  # load_engine compares the types
        assert type(built[1]["settings"][name]) is type(default), name
