"""Operator tables: caching, and the text of their cells."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from buildsys.cli.commands import ops
from buildsys.cli.commands.ops import _captured, _matching, _opsets, _runs
from buildsys.errors import StageError
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


@pytest.mark.parametrize("attack", ["fifo", "huge", "nested", "types", "folder"])
def test_a_damaged_table_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    made = counting(monkeypatch)
    ops.operator_table(tmp_path)
    (file,) = (tmp_path / "operators").iterdir()
    file.unlink()
    if attack == "fifo":
        os.mkfifo(file)
    elif attack == "folder":
        file.mkdir()
    elif attack == "huge":
        file.touch()
        os.truncate(file, 1 << 40)
    else:
        file.write_bytes(b"[" * 100_000 if attack == "nested" else b"[]")
    assert ops.operator_table(tmp_path)["onnx"] == {"number": 2}
    ops.operator_table(tmp_path)
    assert len(made) == (3 if attack == "folder" else 2)  # a folder stays in the way


def test_a_table_that_cannot_be_cached_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counting(monkeypatch)
    (tmp_path / "operators").write_text("a file in the way")
    assert ops.operator_table(tmp_path)["onnx"] == {"number": 1}
    assert "the table cannot be cached" in capsys.readouterr().err


def test_registries_that_cannot_be_read_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "_READER", "import buildsys.no_such_module")
    with pytest.raises(
        StageError, match=r"cannot read the registries: .*No module named 'buildsys"
    ):
        ops.operator_table(tmp_path)


def test_cells() -> None:
    row = {"torchscript": None, "dynamo": 23, "by_parts": True, "writes": ["RMSNormalization"]}
    assert _captured(row) == "from opset 23 (RMSNormalization), else decomposed"
    assert _captured({**row, "dynamo": None, "writes": []}) == "decomposed"
    assert _captured({**row, "dynamo": None, "writes": [], "by_parts": False}) == "no"
    assert _opsets({"opsets": [1, 7, 9, -10]}) == "from 1, changed in 7, 9, removed in 10"
    assert _opsets({"opsets": []}) == "not in ONNX"
    kernels = [
        {"opset": 9, "types": ["float"], "body": False},
        {"opset": 22, "types": ["float"], "body": False},
    ]
    assert _runs(kernels) == "float"
    assert (
        _runs([*kernels, {"opset": 23, "types": [], "body": True}]) == "9: float; 23: as a function"
    )
    assert _runs([]) == "no"
    assert _runs(None) == "not installed"


def test_names_without_their_namespace() -> None:
    rows = {"aten::asinh": {}, "prims::asinh": {}, "Asinh": {}, "aten::asinh_backward": {}}
    assert list(_matching("ASINH", rows)) == ["aten::asinh", "prims::asinh", "Asinh"]
    assert list(_matching("aten::asinh_", rows)) == ["aten::asinh"]
    assert list(_matching("aten.asinh", rows)) == ["aten::asinh"]
    assert json.dumps(_matching("other::asinh", rows)) == "{}"
