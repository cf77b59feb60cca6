"""doit ops as a user calls it: rows, nearest names, graphs, and what it remembers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from project_folder import ProjectFolder, Ran
from ready_project import ReadyProject


@pytest.fixture(scope="module")
def project(
    ready_place: ReadyProject, ready_kept: Path, operator_table: tuple[Path, Ran]
) -> Iterator[ProjectFolder]:
    """A built project whose table is made."""
    with ready_place.cleared():
        ready_place.copy_from(ready_kept)
        shutil.copytree(operator_table[0], ready_place.root / ".buildsys/operators")
        yield ready_place


def test_the_table_is_read_from_the_libraries(operator_table: tuple[Path, Ran]) -> None:
    _, first = operator_table
    assert first.code == 0
    assert "reading the registries" in first.err
    assert "aten::asinh       no            from opset 18\n" in first.out
    assert "DeformConv     from 19, changed in 22  double, float       no" in first.out


def test_the_table_is_remembered(project: ProjectFolder) -> None:
    again = project.buildsys("ops", "--all")
    assert (again.code, again.err) == (0, "")
    assert "aten::celu" in again.out


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (
            ["asih"],
            "there is no operator 'asih' in torch, ONNX or ONNX Runtime here; nearest: Asinh",
        ),
        (["DeformCov"], "nearest: DeformConv"),
        (["aten::rol"], "nearest: aten::roll"),
        (["qqqqqqqq"], "`buildsys ops --all` lists all operators"),
        (["--model", "aa"], "there is no model 'aa'; nearest: a"),
        (["--model", "a", "Gemm"], "ops takes names of operators, --model MODEL or --all"),
    ],
)
def test_unknown_operators_and_models(
    project: ProjectFolder, arguments: list[str], answer: str
) -> None:
    ran = project.buildsys("ops", *arguments)
    assert ran.code == 3
    assert answer in ran.err
    assert ran.out == ""


def test_operators_of_a_graph(project: ProjectFolder) -> None:
    ran = project.buildsys("ops", "--model", "a")
    assert ran.out.splitlines()[0] == "a: simplified graph, opset 17"
    assert "MatMul        1  13 " in ran.out
    shutil.rmtree(project.root / "build")
    without = project.buildsys("ops", "--model", "a")
    assert without.code == 3
    assert "a has no graph yet; `buildsys build simplify:a` builds it" in without.err


def test_json_for_programs(project: ProjectFolder) -> None:
    found = json.loads(project.buildsys("ops", "celu", "aten::celu_", "--json").out)
    assert found["schema"] == "buildsys/ops/1"
    assert {"torch", "onnx", "onnxruntime"} <= found["versions"].keys()
    assert found["torch"]["aten::celu"]["torchscript"] == 12
    assert found["onnx"]["Celu"]["opsets"][0] == 12
    everything = json.loads(project.buildsys("ops", "--all", "--json").out)
    assert len(everything["torch"]) > 1000


def test_wrong_manifests_do_not_prevent_an_answer(project: ProjectFolder) -> None:
    wrong = Path(project.root / "configs/models/wrong.yaml")
    wrong.write_text("model: [\n")
    try:
        assert project.buildsys("ops", "Gemm").code == 0
    finally:
        wrong.unlink()
