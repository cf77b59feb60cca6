"""doit ops as a user calls it: rows, nearest names, graphs, and what it remembers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from project_folder import ProjectFolder


@pytest.fixture(scope="module")
def project(module_place: ProjectFolder) -> ProjectFolder:
    """Return a project whose table is made."""
    project = module_place
    project.create()
    project.add_model("lin")
    first = project.start_and_wait("ops", "asinh", "roll", "DeformConv")
    assert first.code == 0
    assert "reading the registries" in first.err
    assert "aten::asinh       no            from opset 18\n" in first.out
    assert "DeformConv     from 19, changed in 22  double, float       no" in first.out
    return project


def test_the_table_is_remembered(project: ProjectFolder) -> None:
    again = project.doit("ops")
    assert (again.code, again.err) == (0, "")
    assert "TorchScript translates" in again.out


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (
            ["asih"],
            "there is no operator 'asih' in torch, ONNX or ONNX Runtime here; nearest: aten::asinh",
        ),
        (["DeformCov"], "nearest: DeformConv"),
        (["aten::rol"], "nearest: aten::roll"),
        (["qqqqqqqq"], "`doit ops --all` lists all operators"),
        (["--model", "lim"], "there is no model 'lim'; nearest: lin"),
        (["--model", "lin", "Gemm"], "ops takes the names of operators or --model, not both"),
    ],
)
def test_unknown_operators_and_models(
    project: ProjectFolder, arguments: list[str], answer: str
) -> None:
    ran = project.doit("ops", *arguments)
    assert ran.code == 3
    assert answer in ran.err
    assert ran.out == ""


def test_operators_of_a_graph(project: ProjectFolder) -> None:
    early = project.doit("ops", "--model", "lin")
    assert early.code == 3
    assert "lin has no graph yet; `doit simplify:lin` builds it" in early.err
    assert project.doit("simplify:lin").code == 0
    ran = project.doit("ops", "--model", "lin")
    assert ran.out.splitlines()[0] == "lin: simplified graph, opset 17"
    assert "Gemm          1  13 " in ran.out


def test_json_for_programs(project: ProjectFolder) -> None:
    found = json.loads(project.doit("ops", "celu", "aten::celu_", "--json").out)
    assert found["schema"] == "buildsys/ops/1"
    assert {"torch", "onnx", "onnxruntime"} <= found["versions"].keys()
    assert found["torch"]["aten::celu"]["torchscript"] == 12
    assert found["onnx"]["Celu"]["opsets"][0] == 12
    everything = json.loads(project.doit("ops", "--json").out)
    assert len(everything["torch"]) > 1000


def test_wrong_manifests_do_not_prevent_an_answer(project: ProjectFolder) -> None:
    wrong = Path(project.root / "configs/models/wrong.yaml")
    wrong.write_text("model: [\n")
    try:
        assert project.doit("ops", "Gemm").code == 0
    finally:
        wrong.unlink()
