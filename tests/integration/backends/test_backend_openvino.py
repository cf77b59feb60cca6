"""Engines of OpenVINO: numbers, executed precisions, files, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_jobs import calibration, engine_options, random_x, request
from small_graphs import conv_bn, one_node, parse, write

pytest.importorskip("openvino", reason="pip install 'buildsys[openvino]'")

from buildsys.backends.interface import GraphRefusedError, load_backend
from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.backends.openvino.session import executed_layers
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.stages.convert.typed import (
    BF16_IR_VERSION,
    BF16_OPSET,
    convert_precision,
    raise_opset,
)

backend = load_backend("openvino")


def options(**fields: Any) -> dict[str, Any]:
    precision = fields.pop("precision", "fp32")  # int8 would need calibration data in the manifest
    return {**engine_options("openvino", threads=1, **fields), "precision": precision}


def build(folder: Path, model: Any, **fields: Any) -> Any:
    batches = calibration(folder) if fields.get("precision") == "int8" else None
    asked = request(write(folder, model), folder / "engine", options(**fields), calibration=batches)
    backend.prepare(asked.options)
    backend.build(asked)
    return asked


def run(engine: Path, inputs: dict[str, Tensor], **fields: Any) -> dict[str, Tensor]:
    session = backend.load(engine, options(**fields))
    try:
        return session.run(inputs)
    finally:
        session.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(build(tmp_path_factory.mktemp("openvino"), conv_bn()).engine)


@pytest.mark.parametrize(
    ("precision", "dtype", "cosine"),
    [("fp32", "float32", 0.999999), ("bf16", "bfloat16", 0.999), ("int8", "int8", 0.95)],
)
def test_an_engine_computes_in_its_precision(
    tmp_path: Path, precision: str, dtype: str, cosine: float
) -> None:
    try:
        asked = build(tmp_path, conv_bn(), precision=precision)
    except Unavailable as reason:
        pytest.skip(str(reason))
    facts = backend.describe(asked.engine, asked.options)
    assert facts["precision_shares"]["layers"][dtype] > 0.1
    inputs = random_x(8)
    expected = OrtGraph(asked.onnx).run(inputs)
    found = run(asked.engine, inputs, precision=precision)
    for name, tensor in expected.items():
        one, other = tensor.array.ravel(), found[name].array.ravel()
        assert one @ other >= cosine * np.linalg.norm(one) * np.linalg.norm(other)


def test_an_engine_of_a_search_computes_in_the_types_of_its_graph(tmp_path: Path) -> None:
    model, _ = raise_opset(conv_bn(), BF16_OPSET, BF16_IR_VERSION)
    convert_precision(model, "bf16", ["bn", "relu", "pool", "flatten", "fc", "softmax"])
    auto = {**options(precision="bf16", precision_share=0.0), "auto": True}
    asked = request(write(tmp_path, model), tmp_path / "engine", auto)
    try:
        backend.prepare(asked.options)
    except Unavailable as reason:
        pytest.skip(str(reason))
    settings = backend.build(asked)["settings"]
    session = backend.load(asked.engine, {**backend.RUN_OPTIONS, **settings})  # as load_engine does
    executed = {kind: dtype for _, kind, dtype, _ in executed_layers(session.compiled)}
    assert executed["Convolution"] == "bfloat16"
    assert executed["FullyConnected"] == executed["Softmax"] == "float32"


@pytest.mark.parametrize("compiled", [False, True])
def test_ports_keep_their_names_where_nodes_are_folded(tmp_path: Path, compiled: bool) -> None:
    model = parse(
        "(int32[batch,3,8,8] x) => (int64[batch,3,8,8] y, float[batch,3,4,8] left,"
        " float[batch,3,4,8] right) { inner = Cast<to=7>(x) y = Add(inner, inner)"
        " f = Cast<to=1>(x) a, b = Split<axis=2>(f) a_relu = Relu(a) left = Identity(a_relu)"
        " right = Identity(b) }",
        {},
    )
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "/Cast_output_0"
    model.graph.node[1].input[1] = "/Cast_output_0"
    engine = build(tmp_path, model, compiled=compiled).engine
    inputs = random_x(5, "int32")
    expected = OrtGraph(model.SerializeToString()).run(inputs)
    outputs = run(engine, inputs, compiled=compiled)
    assert outputs.keys() == expected.keys()
    for name, tensor in expected.items():
        assert np.array_equal(outputs[name].array, tensor.array)


def test_an_engine_in_another_precision_than_requested_is_refused(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from buildsys.backends.openvino import session

    monkeypatch.setitem(session.PRECISION_HINTS, "bf16", "f32")
    with pytest.raises(StageError, match="requested in bf16, but none of its layers"):
        backend.describe(engine, options(precision="bf16"))


def test_the_recorded_options_can_be_replaced(tmp_path: Path) -> None:
    asked = request(write(tmp_path, conv_bn()), tmp_path / "engine", options())
    settings = backend.build(asked)["settings"]
    for name, default in backend.RUN_OPTIONS.items():  # load_engine compares the types
        assert type(settings[name]) is type(default), name


def test_shapes_outside_the_dims_are_refused(engine: Path) -> None:
    with pytest.raises(StageError, match=r"shape=\[1\.\.8,3,8,8\].*; sizes must be within dims"):
        run(engine, random_x(9))


def test_a_bound_call_runs_on_the_bound_inputs(engine: Path) -> None:
    session = backend.load(engine, options())
    inputs = random_x(2)
    expected = session.run(inputs)
    again = session.duplicate()
    again.run(random_x(3))
    session.bind(inputs)()
    for name, tensor in session.run(inputs).items():
        assert np.array_equal(tensor.array, expected[name].array)


def test_the_slowest_layers_have_times_types_and_nodes(engine: Path) -> None:
    layers = backend.slowest_layers(engine, options(), (), random_x(2))
    assert layers[0]["time_ms"] >= layers[-1]["time_ms"]
    assert {"Convolution"} <= {layer["kind"] for layer in layers}
    assert any(layer["nodes"] for layer in layers)


def test_a_device_that_this_machine_does_not_have_is_named() -> None:
    with pytest.raises(StageError, match=r"OpenVINO finds no NPU here \(devices: CPU"):
        backend.prepare(options(device="NPU"))


def test_all_unsupported_operators_are_named_at_once(tmp_path: Path) -> None:
    asked = request(write(tmp_path, one_node("NoSuchOperator")), tmp_path / "engine", options())
    with pytest.raises(GraphRefusedError) as caught:
        backend.build(asked)
    assert [node.operator.rpartition("::")[2] for node in caught.value.nodes] == ["NoSuchOperator"]


@pytest.mark.parametrize("name", ["engine.xml", "engine.bin"])
def test_a_truncated_file_is_one_sentence(engine: Path, tmp_path: Path, name: str) -> None:
    for file in ("engine.xml", "engine.bin"):
        shutil.copyfile(engine.with_name(file), tmp_path / file)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(StageError, match="OpenVINO cannot compile the model: "):
        backend.load(tmp_path / "engine.xml", options())


def test_a_compiled_model_keeps_its_precision(tmp_path: Path) -> None:
    asked = build(tmp_path, conv_bn(), compiled=True)
    assert backend.describe(asked.engine, asked.options)["precision_shares"]["layers"] == {
        "float32": 1.0
    }
    inputs = random_x(2)
    found = run(asked.engine, inputs, compiled=True)
    for name, tensor in OrtGraph(asked.onnx).run(inputs).items():
        assert np.allclose(found[name].array, tensor.array, rtol=1e-4, atol=1e-4)
    blob = asked.engine.with_name("engine.blob")
    content = blob.read_bytes()
    version = b"ov=" + content.partition(b";ov=")[2].partition(b";")[0]
    older = b"ov=1999.1.1".ljust(len(version), b"1")[: len(version)]
    for bad in (content[: len(content) // 2], content.replace(version, older)):
        blob.write_bytes(bad)
        with pytest.raises(StageError, match=r"engine\.blob is missing, damaged, or compiled for"):
            run(asked.engine, inputs, compiled=True)
