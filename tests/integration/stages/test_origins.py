"""Source lines of nodes, recorded by both exporters for refusals by backends."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from export_jobs import NETWORKS, dynamo, line_of
from onnx import TensorProto, helper
from small_graphs import make_model
from stage_jobs import ROOT, manifest, stage_job

from buildsys.errors import StageError
from buildsys.execution.action_key import declared_parts
from buildsys.models.user_code import source_line
from buildsys.onnx_graphs.source_origins import read_origins
from buildsys.project.plan import plan_model
from buildsys.stages.engine import stage as engine
from buildsys.stages.export import stage as export
from buildsys.workers.job import Job

DEFORMED = {"x": {"shape": ["batch", 3, 5, 5]}, "offset": {"shape": ["batch", 18, 3, 3]}}
PORT = (TensorProto.DOUBLE, ["batch", 4])


def exported(folder: Path, name: str, **sections: Any) -> dict[str, str]:
    spec = manifest(source={"python": f"{NETWORKS}:{name}"}, **sections)
    export.run(stage_job("export", spec, folder))
    return read_origins(folder / "m/export/origins.json")


@pytest.mark.parametrize("options", [{}, dynamo()], ids=["torchscript", "dynamo"])
def test_both_exporters_record_the_line(tmp_path: Path, options: dict[str, Any]) -> None:
    image = {"x": {"shape": ["batch", 3, 8, 8]}}
    found = exported(tmp_path, "Nest", inputs=image, export=options)
    makers = {
        node.op_type: node.output[0]
        for node in onnx.load(tmp_path / "m/export/model.onnx").graph.node
    }
    assert found[makers["Conv"]] == line_of("self.inner(x)")
    assert found[makers["Sigmoid"]] == line_of("torch.sigmoid(self")
    content = (tmp_path / "m/export/model.onnx").read_bytes()
    assert NETWORKS.encode() not in content
    assert str(ROOT).encode() not in (tmp_path / "m/export/origins.json").read_bytes()


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


@pytest.mark.parametrize("content", [None, "{", "[]", '{"schema": "other"}'])
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
    origins = {name: f"plugins/net.py:{index}" for index, name in enumerate(tensors)}
    return {"schema": "buildsys/origins/3", "tensors": origins}


def test_the_node_without_a_kernel_is_named_with_its_line_and_remedies(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Asinh", ["x"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Softsign", ["b"], ["y"], name="two"),
    ]
    model = make_model(nodes, {"x": PORT}, {"y": PORT})
    text = refused_engine(tmp_path, model, "onnxruntime", places("a"))
    problem, *hints = text.splitlines()
    assert problem == (
        "model m: ONNX Runtime cannot take node 0 'one' (Asinh): ONNX Runtime has no CPU kernel for"
        " it with its types"
    )
    assert hints == [
        "Asinh: 1 node, from plugins/net.py:0",
        "1. surgery: replace it by supported operators in a hook (not tried)",
        '     surgery: [{function: "plugins/hooks/asinh.py:replace_asinh"}]',
    ]


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
    assert "my::First: 1 node, from plugins/net.py:0\n1. local function" in text
    assert "my::Second: 1 node, from plugins/net.py:1\n1. local function" in text
    assert 'ops: [{op: "my::Second", plugin: {python: "plugins/ops/second_plugin.py"}}]' in text
