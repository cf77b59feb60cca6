"""``buildsys reduce`` with a library that crashes, and engines without a failure."""

import json
import os

import backend_package
import onnx
from project_folder import finish
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
