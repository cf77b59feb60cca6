"""Nodes by execution provider: read from a session, and refused on the CPU."""

import importlib.util
import platform
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from engine_jobs import engine_options, request
from onnx import TensorProto, helper
from small_graphs import make_model, weights, write

from buildsys.backends.onnxruntime import backend
from buildsys.backends.onnxruntime.engine_session import (
    RECORD_PLACEMENT,
    add_providers,
    check_placement,
    engine_session_options,
    load_cuda_libraries,
    open_engine,
    read_placement,
)
from buildsys.backends.onnxruntime.execution_providers import openvino_plugin_options
from buildsys.errors import CheckFailed, StageError, Unavailable
from buildsys.onnx_graphs.tensors import tensor_of

FLOAT = TensorProto.FLOAT
WANTED = {"providers": ["openvino"]}
ALLOWED = {"providers": ["openvino", "cpu"]}


def reshaped() -> onnx.ModelProto:
    """matmul → reshape to a shape computed from the input → determinant"""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["product"], name="product"),
        node("Shape", ["product"], ["shape"], name="shape"),
        node("Gather", ["shape", "one"], ["side"], name="side", axis=0),
        node("Concat", ["minus", "side", "side"], ["sizes"], name="sizes", axis=0),
        node("Reshape", ["product", "sizes"], ["squares"], name="squares"),
        node("Det", ["squares"], ["y"], name="det"),
    ]
    stored = {"w": weights(4, 4), "one": np.array([1]), "minus": np.array([-1])}
    return make_model(nodes, {"x": (FLOAT, ["batch", 4])}, {"y": (FLOAT, None)}, stored)


def cpu_session_placement(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return the placement of a session of the CPU, as if ``options`` were wanted."""
    model = write(folder, reshaped())
    cpu = engine_options("onnxruntime")
    session = engine_session_options(cpu, "disable")
    session.add_session_config_entry(RECORD_PLACEMENT, "1")
    return read_placement(open_engine(model, session, cpu, ()), model, options)


def test_nodes_that_compute_shapes_are_counted_apart(tmp_path: Path) -> None:
    placement = cpu_session_placement(tmp_path, ALLOWED)
    assert placement == {
        "openvino": {"nodes": 0},
        "cpu": {
            "nodes": 6,
            "shapes": 3,
            "names": ["product (MatMul)", "squares (Reshape)", "det (Det)"],
        },
    }


@pytest.mark.parametrize("options", [WANTED, ALLOWED])
def test_an_engine_without_a_node_on_its_provider_fails(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    placement = cpu_session_placement(tmp_path, options)
    with pytest.raises(
        CheckFailed, match="no node runs on openvino: all 6 run on the CPU"
    ) as caught:
        list(check_placement(placement, options))
    assert "read in the log if it did not start" in caught.value.hint


def placement(*names: str, shapes: int = 0) -> dict[str, Any]:
    cpu = {"nodes": len(names) + shapes, "shapes": shapes, "names": list(names)}
    return {"openvino": {"nodes": 5}, "cpu": cpu}


def test_nodes_on_the_cpu_fail_unless_it_is_listed() -> None:
    found = placement("det (Det)", shapes=2)
    with pytest.raises(CheckFailed) as caught:
        list(check_placement(found, WANTED))
    assert caught.value.problem == (
        "1 of 6 nodes runs on the CPU: det (Det); providers lists only openvino"
    )
    assert caught.value.hint.startswith("add cpu at the end of providers")
    assert list(check_placement(found, ALLOWED)) == ["1 of 6 nodes runs on the CPU: det (Det)"]
    assert list(check_placement(found, {"provider": "cuda"}))


def test_nodes_for_shapes_may_run_on_the_cpu() -> None:
    assert list(check_placement(placement(shapes=3), WANTED)) == []


def test_without_a_report_of_onnxruntime_the_cpu_must_be_listed(tmp_path: Path) -> None:
    class OldSession:
        session = object()

    old: Any = OldSession()
    assert read_placement(old, tmp_path, ALLOWED) == {}
    with pytest.raises(Unavailable, match="does not report the providers of nodes") as caught:
        read_placement(old, tmp_path, WANTED)
    assert "pip install 'onnxruntime>=1.24'" in caught.value.hint


def test_an_engine_of_the_cpu_has_no_placement(tmp_path: Path) -> None:
    asked = request(
        write(tmp_path, reshaped()),
        tmp_path / "e",
        engine_options("onnxruntime", providers=["cpu"]),
    )
    figures = backend.build(asked)
    assert "placement" not in figures
    assert figures["settings"]["providers"] == ["cpu"]
    assert backend.load(asked.engine, figures["settings"]).session.get_providers() == [
        "CPUExecutionProvider"
    ]


HAS_QNN = importlib.util.find_spec("onnxruntime_qnn") is not None


@pytest.mark.parametrize(
    ("name", "installs"),
    [
        pytest.param(
            "qnn",
            "pip install onnxruntime-qnn",
            marks=pytest.mark.skipif(HAS_QNN, reason="onnxruntime-qnn is installed"),
        ),
        ("directml", "pip install onnxruntime-directml"),
        ("migraphx", "pip install onnxruntime-migraphx"),
        ("xnnpack", "--use_xnnpack"),
    ],
)
def test_a_missing_provider_is_unavailable_with_its_package(name: str, installs: str) -> None:
    with pytest.raises(Unavailable) as caught:
        backend.prepare(engine_options("onnxruntime", providers=[name]))
    assert (
        caught.value.problem
        == f"the installed onnxruntime {ort.__version__} has no {name} provider"
    )
    assert installs in caught.value.hint


HAS_OPENVINO = "OpenVINOExecutionProvider" in ort.get_available_providers() or (
    importlib.util.find_spec("onnxruntime_ep_openvino") is not None
)


@pytest.mark.skipif(not HAS_OPENVINO, reason="needs onnxruntime-openvino or its plugin")
def test_an_engine_of_openvino_reports_its_nodes(tmp_path: Path) -> None:
    options = engine_options("onnxruntime", providers=["openvino", "cpu"])
    try:
        backend.prepare(options)
    except Unavailable as reason:
        pytest.skip(reason.problem)
    asked = request(write(tmp_path, reshaped()), tmp_path / "e", options)
    figures = backend.build(asked)
    assert figures["placement"]["openvino"]["nodes"] > 0
    assert figures["placement"]["cpu"]["names"] == ["det (Det)"]
    with pytest.raises(CheckFailed, match="providers lists only openvino"):
        backend.build(request(asked.onnx, tmp_path / "f", {**options, **WANTED}))


@pytest.mark.skipif(not HAS_OPENVINO, reason="needs onnxruntime-openvino or its plugin")
@pytest.mark.parametrize("ep_context", [False, True])
def test_openvino_computes_in_fp32_unless_asked(tmp_path: Path, ep_context: bool) -> None:
    """Processors with bfloat16 would otherwise use it, with errors of 4e-3."""
    node = helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["p"], name="p"), node("Relu", ["p"], ["y"], name="y")]
    w = np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)
    graph = make_model(nodes, {"x": (FLOAT, [64, 256])}, {"y": (FLOAT, [64, 64])}, {"w": w})
    options = engine_options("onnxruntime", providers=["openvino"], ep_context=ep_context)
    try:
        backend.prepare(options)
    except Unavailable as reason:
        pytest.skip(reason.problem)
    asked = request(write(tmp_path, graph), tmp_path / "e", options)
    figures = backend.build(asked)
    x = np.random.default_rng(1).normal(size=(64, 256)).astype(np.float32)
    found = backend.load(asked.engine, figures["settings"]).run({"x": tensor_of(x)})["y"].array
    assert np.abs(found - np.maximum(x @ w, 0)).max() < 1e-3


def test_options_of_openvino_are_properties_for_its_plugin() -> None:
    given = {
        "device_type": "CPU",
        "precision": "FP32",
        "num_of_threads": "2",
        "disable_dynamic_shapes": "true",
    }
    assert openvino_plugin_options(given, "CPU") == {
        "disable_dynamic_shapes": "true",
        "load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "2"}}',
    }
    assert openvino_plugin_options({"device_type": "GPU"}, "GPU") == {}


@pytest.mark.skipif(not HAS_QNN, reason="needs onnxruntime-qnn")
@pytest.mark.parametrize("provider", ["qnn", {"qnn": {"backend_path": "libQnnHtp.so"}}])
@pytest.mark.parametrize("ep_context", [False, True])
def test_an_engine_of_qnn_is_built_and_loaded(
    tmp_path: Path, ep_context: bool, provider: Any
) -> None:
    node = helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["p"], name="p"), node("Relu", ["p"], ["y"], name="y")]
    graph = make_model(nodes, {"x": (FLOAT, [2, 4])}, {"y": (FLOAT, [2, 4])}, {"w": weights(4, 4)})
    options = engine_options("onnxruntime", providers=[provider], ep_context=ep_context)
    backend.prepare(options)
    asked = request(write(tmp_path, graph), tmp_path / "e", options)
    figures = backend.build(asked)
    assert "cpu" not in figures["placement"]
    is_simulated = platform.machine() == "x86_64"
    simulates = "qnn simulates its device on this processor; its speed is not meaningful"
    assert (simulates in figures["messages"]) == is_simulated
    kinds = {node.op_type for node in onnx.load(str(asked.engine)).graph.node}
    assert kinds == ({"EPContext"} if ep_context else {"MatMul", "Relu"})
    x = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    found = backend.load(asked.engine, figures["settings"]).run({"x": tensor_of(x)})["y"].array
    assert np.allclose(found, np.maximum(x @ weights(4, 4), 0), atol=1e-5)


def test_nothing_is_kept_of_providers_that_compile_nothing(tmp_path: Path) -> None:
    options = engine_options("onnxruntime", ep_context=True)
    asked = request(write(tmp_path, reshaped()), tmp_path / "e", options)
    with pytest.raises(StageError, match="cannot keep what its providers compile") as caught:
        backend.build(asked)
    assert "remove ep_context" in caught.value.hint
    assert str(tmp_path) not in caught.value.problem


def test_providers_of_nvidia_load_cuda_from_packages_without_printing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ort, "preload_dlls", lambda: print("not found"))
    for providers in (["directml"], ["cuda"]):
        load_cuda_libraries.cache_clear()
        with pytest.raises(Unavailable):
            add_providers(ort.SessionOptions(), engine_options("onnxruntime", providers=providers))
        printed = capsys.readouterr()
        assert not printed.out
        assert ("not found" in printed.err) == (providers == ["cuda"])
