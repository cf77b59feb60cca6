"""Source lines of nodes, recorded by both exporters for refusals by backends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_jobs import engine_options, refused_nodes, request
from export_jobs import NETWORKS, dynamo, line_of
from onnx import TensorProto, helper
from small_graphs import make_model
from stage_jobs import ROOT, manifest, stage_job

from buildsys.backends.interface import GraphRefusedError
from buildsys.backends.onnxruntime import backend as ort_backend
from buildsys.errors import StageError
from buildsys.execution.action_key import declared_parts
from buildsys.onnx_graphs.source_origins import Origin, read_origins
from buildsys.project.plan import plan_model
from buildsys.stages.engine import stage as engine
from buildsys.stages.export import stage as export
from buildsys.stages.export.origins import source_line
from buildsys.workers.job import Job

DEFORMED = {"x": {"shape": ["batch", 3, 5, 5]}, "offset": {"shape": ["batch", 18, 3, 3]}}
PORT = (TensorProto.DOUBLE, ["batch", 4])


def exported(folder: Path, name: str, **sections: Any) -> dict[str, Origin]:
    spec = manifest(source={"python": f"{NETWORKS}:{name}"}, **sections)
    export.run(stage_job("export", spec, folder))
    return read_origins(folder / "m/export/origins.json")


@pytest.mark.parametrize("options", [{}, dynamo()], ids=["torchscript", "dynamo"])
def test_both_exporters_record_line_and_module(tmp_path: Path, options: dict[str, Any]) -> None:
    image = {"x": {"shape": ["batch", 3, 8, 8]}}
    found = exported(tmp_path, "Nest", inputs=image, export=options)
    makers = {
        node.op_type: node.output[0]
        for node in onnx.load(tmp_path / "m/export/model.onnx").graph.node
    }
    assert found[makers["Conv"]] == Origin(line_of("self.inner(x)"), "inner.0")
    assert found[makers["Sigmoid"]] == Origin(line_of("torch.sigmoid(self"), "")
    content = (tmp_path / "m/export/model.onnx").read_bytes()
    assert NETWORKS.encode() not in content
    assert str(ROOT).encode() not in (tmp_path / "m/export/origins.json").read_bytes()


def test_a_ready_file_has_no_origins(tmp_path: Path) -> None:
    spec = manifest(source={"onnx": "m.onnx"})
    assert all(
        "origins" not in action.outputs and not action.advisory for action in plan_model(spec)
    )


def test_advisory_files_are_in_no_key() -> None:
    spec = manifest(
        source={"python": f"{NETWORKS}:Affine"}, engines=[{"backend": "onnxruntime", "name": "e"}]
    )
    action = next(action for action in plan_model(spec) if action.stage == "engine")
    assert action.advisory
    assert declared_parts(action) == declared_parts(replace(action, advisory={}))
    assert action == replace(action, advisory={})


def test_frames_of_the_user_go_before_those_of_libraries(tmp_path: Path) -> None:
    own, library = tmp_path / "plugins/net.py", "/x/site-packages/timm/layers.py"
    torch = "/x/site-packages/torch/nn/modules/linear.py"
    inner = f"{torch}(134): forward\n{library}(7): forward\n{own}(12): forward\n"
    traced = f"{inner}/x/torch/jit/_trace.py(1): f\n{own}(99): main\n"
    assert source_line(traced, tmp_path) == "plugins/net.py:12"
    captured = (
        f'  File "{own}", line 12, in forward\n    y\n'
        f'  File "{library}", line 7, in forward\n    z\n'
    )
    assert source_line(captured, tmp_path) == "plugins/net.py:12"
    assert (
        source_line(f"{torch}(134): forward\n{library}(7): forward\n", tmp_path)
        == "timm/layers.py:7"
    )
    assert source_line(f"{torch}(134): forward\n", tmp_path) == ""
    assert source_line("", tmp_path) == ""


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", '{"schema": "buildsys/origins/1"}', '{"schema": "other"}']
)
def test_an_unreadable_file_has_no_origins(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "origins.json"
    if content is not None:
        file.write_text(content)
    assert read_origins(file) == {}
    assert read_origins(None) == {}


def refused_engine(
    build: Path, model: onnx.ModelProto, backend: str, origins: dict[str, Any]
) -> str:
    """Return the engine stage's error for a refused graph."""
    spec = manifest(
        source={"python": f"{NETWORKS}:Affine"}, engines=[{"backend": backend, "name": "e"}]
    )
    action = next(action for action in plan_model(spec) if action.stage == "engine")
    outputs = {role: build / ref.path for role, ref in action.outputs.items()}
    outputs["result"].parent.mkdir(parents=True)
    onnx.save(model, build / "model.onnx")
    (build / "origins.json").write_text(json.dumps(origins))
    job = Job(
        target=action.target, stage="engine", model="m", variant="e", options=action.options,
        inputs={"model": build / "model.onnx"}, outputs=outputs, project=ROOT,
        advisory={"origins": build / "origins.json"},
    )  # fmt: skip
    with pytest.raises(StageError) as error:
        engine.run(job)
    return str(error.value)


def places(*tensors: str) -> dict[str, Any]:
    found = {name: [index, 0] for index, name in enumerate(tensors)}
    lines = [f"plugins/net.py:{index}" for index, _ in enumerate(tensors)]
    return {"schema": "buildsys/origins/1", "lines": lines, "modules": ["head"], "tensors": found}


def test_every_node_without_a_kernel_is_named_with_its_line_and_remedies(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Asinh", ["x"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Asinh", ["b"], ["c"], name="two"),
        helper.make_node("Softsign", ["c"], ["y"], name="three"),
    ]
    model = make_model(nodes, {"x": PORT}, {"y": PORT})
    text = refused_engine(tmp_path, model, "onnxruntime", places("a", "c"))
    problem, *hints = text.splitlines()
    assert problem == (
        "model m: ONNX Runtime cannot take 2 nodes Asinh, first node 0 'one' (Asinh): ONNX Runtime"
        " has no CPU kernel"
        " for it in double; node 3 'three' (Softsign): ONNX Runtime has no CPU kernel for it in"
        " double"
    )
    assert hints == [
        "Asinh: 2 nodes, the first from plugins/net.py:0, module head",
        "1. surgery: replace it by a local function of supported operators",
        '     surgery: [{replace: {op: Asinh, function: "plugins/ops/asinh.py:asinh"}, when:'
        " after_export}]",
        # of the nearest node before it that is known
        "Softsign: 1 node, from plugins/net.py:1, module head",
        # where ONNX defines it by other operators
        "1. opset: export to opset 18; the backend supports it from there on",
        "     export: {opset: 18}",
        "2. surgery: replace it by a local function of supported operators",
        "     surgery: [{replace: {op: Softsign, function:"
        ' "plugins/ops/softsign.py:softsign"}, when: after_export}]',
    ]


def test_a_later_opset_that_has_the_kernel_is_a_remedy(tmp_path: Path) -> None:
    grid = (TensorProto.DOUBLE, ["batch", 2, 2, 2])
    image = (TensorProto.DOUBLE, ["batch", 3, 4, 4])
    node = helper.make_node("GridSample", ["x", "g"], ["y"])
    model = make_model(
        [node], {"x": image, "g": grid}, {"y": (TensorProto.DOUBLE, ["batch", 3, 2, 2])}, opset=17
    )
    text = refused_engine(tmp_path, model, "onnxruntime", places())
    assert (
        "1. opset: export to opset 20; the backend supports it from there on\n     export: {opset:"
        " 20}\n2. surgery" in text
    )
    model.opset_import[0].version = 20
    opset_20 = tmp_path / "20.onnx"
    onnx.save(model, opset_20)
    ort_backend.build(request(opset_20, tmp_path / "built", engine_options("onnxruntime")))


def test_operators_without_any_kernel_but_with_a_body_are_not_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MeanVarianceNormalization", ["x"], ["a"], axes=[1]),
        helper.make_node("Mish", ["a"], ["y"]),
    ]
    port = (TensorProto.FLOAT, ["batch", 4])
    model = make_model(nodes, {"x": port}, {"y": port}, opset=18)
    onnx.save(model, tmp_path / "m.onnx")
    assert (
        refused_nodes(
            ort_backend, request(tmp_path / "m.onnx", tmp_path, engine_options("onnxruntime"))
        )
        == []
    )


@pytest.mark.parametrize(
    ("operator", "opset", "since"),
    [
        ("Softsign", 17, [18]),
        ("Softsign", 18, []),
        ("Softsign", 22, [None]),
        ("Mish", 18, []),
        ("Gelu", 20, [None]),
    ],
)
def test_a_body_that_onnx_gives_an_operator_counts_where_it_is_run(
    tmp_path: Path, operator: str, opset: int, since: list[int | None]
) -> None:
    model = make_model(
        [helper.make_node(operator, ["x"], ["y"])], {"x": PORT}, {"y": PORT}, opset=opset
    )
    onnx.save(model, tmp_path / "m.onnx")
    asked = request(tmp_path / "m.onnx", tmp_path, engine_options("onnxruntime"))
    assert [node.since for node in refused_nodes(ort_backend, asked)] == since


def test_a_node_that_optimization_removes_is_not_refused(tmp_path: Path) -> None:
    """A missing kernel matters only if ONNX Runtime needs it."""
    taken = helper.make_tensor_value_info("t", TensorProto.DOUBLE, None)
    left = helper.make_tensor_value_info("e", TensorProto.DOUBLE, None)
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "then", [], [taken])
    other = helper.make_graph([helper.make_node("Asinh", ["x"], ["e"])], "else", [], [left])
    choice = helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other)
    onnx.save(
        make_model([choice], {"x": PORT}, {"y": PORT}, {"yes": np.array(True)}), tmp_path / "m.onnx"
    )
    asked = request(tmp_path / "m.onnx", tmp_path, engine_options("onnxruntime"))
    assert refused_nodes(ort_backend, asked) == []
    plain = replace(asked, options={**asked.options, "graph_optimization_level": "disable"})
    assert [node.operator for node in refused_nodes(ort_backend, plain)] == ["Asinh"]
    with pytest.raises(GraphRefusedError):
        ort_backend.build(plain)


def test_tensorrt_names_the_line_of_each_operator(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    domains = [helper.make_opsetid("my", 1)]
    port = (TensorProto.FLOAT, ["batch", 4])
    nodes = [
        helper.make_node("First", ["x"], ["a"], domain="my"),
        helper.make_node("Second", ["a"], ["y"], domain="my"),
    ]
    model = make_model(nodes, {"x": port}, {"y": port})
    model.opset_import.extend(domains)
    text = refused_engine(tmp_path, model, "tensorrt_rtx", places("a", "y"))
    assert "my::First: 1 node, from plugins/net.py:0, module head\n1. local function" in text
    assert "my::Second: 1 node, from plugins/net.py:1, module head\n1. local function" in text
    assert 'ops: [{op: "my::Second", plugin: {python: "plugins/ops/second_plugin.py"}}]' in text
