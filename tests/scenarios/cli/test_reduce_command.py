"""``buildsys reduce`` with a library that crashes, a toolchain, and engines without a failure."""

import json
import os

import backend_package
import onnx
import pytest
from project_folder import finish
from python_environments import Environment
from ready_project import ReadyProject

ABORT = """
import os

_build = build

def build(request):
    if any(node.op_type == "Add" for node in onnx.load(request.onnx).graph.node):
        os.abort()
    return _build(request)
"""


def test_a_crash_is_reduced_in_processes_of_its_own(ready: ReadyProject) -> None:
    site = ready.root / "site"
    site.mkdir()
    with (backend_package.install(site) / "backend.py").open("a") as file:
        file.write(ABORT)
    assert ready.doit("validate:a", "engine:a:ort").code == 0
    ready.environment["PYTHONPATH"] += f"{os.pathsep}{site}"
    engines = "[{backend: onnxruntime, name: ort}, {backend: reference, name: ref}]"
    ready.edit("configs/models/a.yaml", "[{backend: onnxruntime, name: ort}]", engines)
    words = ("reduce", "a:ref", "--out", "case", "--json")
    done = finish(ready.start_new(*words))
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["schema"], document["failure"]["kind"]) == ("buildsys/reduce/1", "crash")
    assert (document["nodes_before"], [op for _, op in document["nodes"]]) == (2, ["Add"])
    assert document["is_reproduced"]
    (node,) = onnx.load(ready.root / "case/model.onnx").graph.node
    assert node.op_type == "Add"
    assert {path.name for path in (ready.root / "case").iterdir()} >= {"README.md", "repro.py"}
    ready.edit("configs/models/a.yaml", engines, "[{backend: onnxruntime, name: ort}]")
    again = ready.buildsys("reduce", "a:ort", "--out", "case")
    assert (again.code, again.out) == (3, "")
    assert "case exists; name a new folder with --out" in again.err
    ready.edit("configs/models/a.yaml", "max: 4", "max: 5")
    early = ready.buildsys("reduce", "a:ort")
    assert (early.code, early.out) == (3, "")
    assert "simplify:a is not up to date; run `buildsys build simplify:a" in early.err
    ready.edit("configs/models/a.yaml", "max: 5", "max: 4")
    right = ready.buildsys("reduce", "a:ort", "--out", "right")
    assert (right.code, right.out) == (1, "")
    assert "the graph builds and is right in every case" in right.err
    assert not (ready.root / "right").exists()


NARROW = """<ir_version: 8, opset_import: ["": 17]>
g (float[batch,8] x) => (int64[batch,8] y) <float big = {1e5}, int64 prime = {65537}> {
    scaled = Mul(x, big)
    whole = Cast <to = 7> (scaled)
    y = Mul(whole, prime)
}"""
MANIFEST = """
model: narrow
source: {onnx: networks/narrow.onnx}
inputs: {x: {shape: [batch, 8]}}
outputs: {y: {shape: [batch, 8]}}
dims: {batch: {min: 1, opt: 2, max: 4}}
engines: [{backend: openvino, name: ov, toolchain: other}]
"""


def test_a_fault_of_a_toolchain_is_reduced_in_it_and_a_cure_is_tried(ready: ReadyProject) -> None:
    pytest.importorskip("openvino", reason="pip install 'buildsys[openvino]'")
    root = ready.root
    other = Environment(root / "envs/other", "numpy", "openvino")
    other.relabel("openvino", "2024.1.0")
    onnx.save(onnx.parser.parse_model(NARROW), root / "networks/narrow.onnx")
    (root / "configs/models/narrow.yaml").write_text(MANIFEST)
    (root / "configs/project.yaml").write_text(
        "toolchains: {other: {python: envs/other/bin/python}}"
    )
    ready.environment["BUILDSYS_TRIALS"] = "1"
    assert ready.doit("simplify:narrow", "reference:narrow").code == 0
    document = json.loads(ready.buildsys("reduce", "narrow:ov", "--out", "case", "--json").out)
    assert [operator for _, operator in document["nodes"]] == ["Mul"]
    assert document["is_reproduced"]
    tried, hint = document["cures"]
    change = "engines: [{backend: onnxruntime, name: ov, precision: fp32}]"
    assert tried == f"{change} (tried: it leads to a verified engine)"
    assert hint.startswith("OpenVINO computes int64 in 32 bits")
    assert "openvino 2024.1.0" in (root / "case/README.md").read_text()
