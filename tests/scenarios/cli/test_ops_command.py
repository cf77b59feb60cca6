"""``buildsys ops`` as a user calls it: rows, nearest names, graphs, and what it remembers."""

import json
import shutil
from pathlib import Path

from project_folder import Ran
from ready_project import ReadyProject


def test_operators_by_name_and_of_a_model(
    ready_built: ReadyProject, operator_table: tuple[Path, Ran]
) -> None:
    folder, first = operator_table
    assert first.code == 0
    assert "reading the registries" in first.err
    assert "aten::asinh       no            from opset 18\n" in first.out
    assert "DeformConv     from 19, changed in 22  double, float       no" in first.out

    shutil.copytree(folder, ready_built.root / ".buildsys/operators")
    (ready_built.root / "configs/models/wrong.yaml").write_text("model: [\n")
    everything = ready_built.buildsys("ops")
    assert (everything.code, everything.err) == (0, "")
    assert "aten::celu" in everything.out
    celu = json.loads(ready_built.buildsys("ops", "celu", "aten::celu_", "--json").out)
    assert celu["schema"] == "buildsys/ops/1"
    assert {"torch", "onnx", "onnxruntime"} <= celu["versions"].keys()
    assert celu["torch"]["aten::celu"]["torchscript"] == 12
    assert celu["onnx"]["Celu"]["opsets"][0] == 12
    title, *rows = ready_built.buildsys("ops", "a").out.splitlines()
    assert title.startswith("ONNX operator")
    assert any(row.startswith("MatMul ") for row in rows)

    for name, hint in (
        ("asih", "there is no operator 'asih'; nearest: asinh"),
        ("aten::rol", "nearest: aten::roll"),
        ("qqqqqqqq", "`buildsys ops` lists all operators"),
    ):
        ran = ready_built.buildsys("ops", name)
        assert (ran.code, ran.out) == (3, "")
        assert hint in ran.err
    shutil.rmtree(ready_built.root / "build")
    assert "a has no graph yet; `buildsys build export:a` makes it" in (
        ready_built.buildsys("ops", "a").err
    )
