"""`buildsys doctor` on a project, as a process."""

import json
from typing import Any

from project_folder import ProjectFolder, Ran, finish
from python_environments import Environment


def findings(ran: Ran) -> dict[str, dict[str, Any]]:
    answer = json.loads(ran.out)
    assert answer["schema"] == "buildsys/doctor/1"
    return {f"{finding['about']} {finding['name']}": finding for finding in answer["findings"]}


def test_it_lists_the_installation_and_fails_if_something_required_is_missing(
    project: ProjectFolder,
) -> None:
    old = Environment(project.root / "envs/old", "numpy")
    project.add_model("lin")
    engines = (
        "{backend: onnxruntime, name: ort}, "
        "{backend: onnxruntime, name: old, toolchain: old, required: true}"
    )
    project.edit("configs/models/lin.yaml", "{backend: onnxruntime, name: ort}", engines)
    (project.root / "configs/project.yaml").write_text(
        "toolchains: {old: {python: envs/old/bin/python}}\n"
    )
    ran = finish(project.start_new("doctor", "--json"))
    assert ran.code == 1
    found = findings(ran)
    needed = found["engine lin:old"]
    assert needed["state"] == "broken"
    assert needed["text"] == "required, but cannot be built here: onnxruntime is not installed"
    assert needed["mend"] == f"{old.python} -m pip install onnxruntime onnx"
    assert {
        found[f"library {name}"]["state"] for name in ("torch", "torchvision", "onnx", "onnxsim")
    } == {"ok"}
    assert found["backend onnxruntime"]["facts"]["engines"] == ["lin:ort"]
    assert found["toolchain old"]["facts"]["engines"] == ["lin:old"]
    assert found["folder build"]["facts"]["writable"]
    assert not (project.root / "build").exists()
