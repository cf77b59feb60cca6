"""Operator tables: caching, and the text of their cells."""

import json
from pathlib import Path
from typing import Any

import pytest

from buildsys.cli.commands import ops
from buildsys.cli.commands.ops import _exported, _opsets, _runs
from buildsys.errors import StageError, UsageError
from buildsys.system.processes import ChildResult


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []

    def read(arguments: object) -> ChildResult:
        made.append(1)
        return ChildResult(0, json.dumps({"torch": {}, "onnx": {"number": len(made)}}), "")

    monkeypatch.setattr(ops, "run_python", read)
    return made


def test_a_table_is_made_once_for_a_set_of_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counting(monkeypatch)
    versions = {"torch": "1"}
    monkeypatch.setattr(ops, "library_versions", lambda: versions)
    for wanted, version in [(1, "1"), (1, "1"), (2, "2"), (1, "1")]:
        versions["torch"] = version
        assert ops.operator_table(tmp_path)["onnx"] == {"number": wanted}
    assert len(made) == 2


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]"])
def test_a_damaged_table_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    made = counting(monkeypatch)
    ops.operator_table(tmp_path)
    (file,) = (tmp_path / "operators").iterdir()
    file.write_bytes(content)
    for _ in range(2):
        assert ops.operator_table(tmp_path)["onnx"] == {"number": 2}
    assert len(made) == 2


def test_registries_that_cannot_be_read_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "_READER", "import buildsys.no_such_module")
    with pytest.raises(
        StageError, match=r"cannot read the registries: .*No module named 'buildsys"
    ):
        ops.operator_table(tmp_path)


def test_cells() -> None:
    assert _exported({"torchscript": None, "dynamo": 23}) == ("no", "from opset 23")
    assert _exported({"torchscript": 9, "dynamo": 0}) == ("from opset 9", "decomposed")
    assert _opsets({"opsets": [1, 7, 9, -10]}) == "from 1, changed in 7, 9, removed in 10"
    assert _opsets({"opsets": []}) == "not in ONNX"
    kernels = [{"opset": opset, "types": ["float"], "body": False} for opset in (9, 22)]
    function = {"opset": 23, "types": [], "body": True}
    assert _runs(kernels) == "float"
    assert _runs([*kernels, function]) == "9: float; 23: as a function"
    assert (_runs([]), _runs(None)) == ("no", "not here")


def test_names_without_their_namespace() -> None:
    table: dict[str, dict[str, dict[str, Any]]] = {
        "torch": {"aten::asinh": {}, "prims::asinh": {}, "aten::asinh_backward": {}},
        "onnx": {"Asinh": {}},
    }
    torch, onnx = ops.chosen_rows(table, ["ASINH"])
    assert ([*torch], [*onnx]) == (["aten::asinh", "prims::asinh"], ["Asinh"])
    assert [*ops.chosen_rows(table, ["aten::asinh_"])[0]] == ["aten::asinh"]
    assert [*ops.chosen_rows(table, ["aten.asinh"])[0]] == ["aten::asinh"]
    with pytest.raises(UsageError, match=r"there is no operator .other::asinh.; nearest: .*asinh"):
        ops.chosen_rows(table, ["other::asinh"])
