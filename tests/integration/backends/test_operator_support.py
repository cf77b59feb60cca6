"""The table of operators, compared with the behaviour of the libraries."""

from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest
from engine_jobs import engine_options, request
from export_jobs import NETWORKS
from onnx import TensorProto, helper
from small_graphs import make_model
from stage_jobs import manifest, stage_job

from buildsys.backends import operator_support
from buildsys.backends.onnxruntime import backend as ort_backend
from buildsys.errors import StageError
from buildsys.stages.export import stage as export

TYPES = {"float": TensorProto.FLOAT, "double": TensorProto.DOUBLE, "int32": TensorProto.INT32}
DEFORMED = {"x": {"shape": ["batch", 3, 5, 5]}, "offset": {"shape": ["batch", 18, 3, 3]}}


def exports(folder: Path, name: str, exporter: str, opset: int, **sections: Any) -> bool:
    options = {"exporter": exporter, "opset": opset}
    spec = manifest(source={"python": f"{NETWORKS}:{name}"}, export=options, **sections)
    try:
        export.run(stage_job("export", spec, folder))
    except StageError:
        return False
    return True


@pytest.fixture(scope="module")
def registries() -> ModuleType:
    """Import PyTorch's registries: three seconds, so not where tests are collected."""
    import torchvision  # noqa: F401 (registers its operators)

    from buildsys.backends import operator_support as torch_registries

    # read by an earlier test, without the operators of torchvision
    torch_registries.translations.cache_clear()
    return torch_registries


@pytest.mark.parametrize(
    ("operator", "network", "lowest"),
    [("aten::celu", "Celu", 12), ("aten::asinh", "Asinh", None)],
)
def test_torchscript_translates_from_that_opset_on(
    tmp_path: Path, registries: ModuleType, operator: str, network: str, lowest: int | None
) -> None:
    assert registries.torchscript_from(operator) == lowest
    if lowest is None:
        assert not exports(tmp_path, network, "torchscript", 20)
        return
    assert exports(tmp_path, network, "torchscript", lowest)
    assert not exports(tmp_path, network, "torchscript", lowest - 1)


def test_a_symbolic_function_that_only_refuses_is_none(registries: ModuleType) -> None:
    """Registered for opset 8 or 9, these raise that they need a later one."""
    assert registries.torchscript_from("aten::cumsum") == 11
    assert registries.torchscript_from("aten::where") == 9


def test_dynamo_needs_the_opset_of_the_operators_that_it_writes(
    registries: ModuleType, tmp_path: Path
) -> None:
    assert registries.dynamo_opset("torchvision::deform_conv2d") == 19
    assert exports(tmp_path, "Deformed", "dynamo", 19, inputs=DEFORMED)


def test_dynamo_by_its_registry_by_parts_or_not_at_all(registries: ModuleType) -> None:
    operators = ("asinh", "rms_norm", "adaptive_avg_pool2d", "_linalg_eigh", "nobody_knows")
    opsets = [registries.dynamo_opset(f"aten::{name}") for name in operators]
    assert opsets == [18, 23, 0, None, None]


def runs(folder: Path, operator: str, opset: int, element: int) -> bool:
    port = (element, [2, 4])
    model = make_model(
        [helper.make_node(operator, ["x"], ["y"])], {"x": port}, {"y": port}, opset=opset
    )
    onnx.save(model, folder / "m.onnx")
    try:
        ort_backend.build(request(folder / "m.onnx", folder, engine_options("onnxruntime")))
    except StageError:
        return False
    return True


@pytest.mark.parametrize("operator", ["Asinh", "Relu", "Mish"])
def test_the_types_of_onnx_runtime_are_those_that_it_runs(tmp_path: Path, operator: str) -> None:
    opsets = operator_support.operator_versions()["", operator]
    for row in operator_support.ort_support("", operator, opsets):
        if row["opset"] < 7 or row["body"]:
            continue  # older files are not promised to load; a body may be run in its place
        allowed = (
            onnx.defs.get_schema(operator, row["opset"], "").type_constraints[0].allowed_type_strs
        )
        for name, element in TYPES.items():
            if f"tensor({name})" in allowed:
                assert runs(tmp_path, operator, row["opset"], element) == (name in row["types"]), (
                    row,
                    name,
                )


def test_what_tensorrt_takes() -> None:
    pytest.importorskip("tensorrt_rtx")
    assert operator_support.parser_supports("tensorrt_rtx", "Conv") is True
    assert operator_support.parser_supports("tensorrt_rtx", "DeformConv") is False


def test_the_functions_of_torchlib_are_parsed_once() -> None:
    from onnxscript._internal.values import TracedOnnxFunction

    from buildsys.backends.parsed_torchlib import parse_torchlib

    first, second = (
        [meta for metas in parse_torchlib().functions.values() for meta in metas] for _ in range(2)
    )
    parsed = {
        meta.onnx_function: meta.onnx_function.function_ir
        for meta in first
        if isinstance(meta.onnx_function, TracedOnnxFunction)
    }
    assert len(parsed) > 100
    assert all(function.function_ir is found for function, found in parsed.items())
    assert all(one.signature is again.signature for one, again in zip(first, second, strict=True))
