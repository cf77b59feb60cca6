"""Types of result files and their reader."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_results import PASSING

from buildsys.report.key_figures import result_type
from buildsys.report.result_files import parse, read_result
from buildsys.stages.export.result import ExportResult
from buildsys.stages.verify.result import VerifyResult


@pytest.mark.parametrize("target", PASSING)
def test_a_result_without_faults_is_read_unchanged(target: str) -> None:
    content = PASSING[target]
    assert parse(content, result_type(target.partition(":")[0])) == content


def test_a_value_of_a_wrong_type_damages_a_result(tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    content = {"target": "export:net", "status": "passed", "operators": {"Conv": 2, "Relu": None}}
    file.write_text(json.dumps(content))
    result = read_result("export:net", file, "export.json", ExportResult)
    assert (result.status, result.content) == ("failed", {})
    assert result.reason.startswith("the result file is damaged: operators.Relu: ")
    assert result.hint == "`buildsys build export:net` writes it again"
    assert parse(content, ExportResult) == {}


def test_further_fields_are_left_out() -> None:
    assert parse({"opset": 17, "added": 1}, ExportResult) == {"opset": 17}


@pytest.mark.parametrize("value", ["nan", 1, True, 0.5, None])
def test_a_value_of_any_listed_type_is_unchanged(value: Any) -> None:
    read = parse({"failures": [{"actual": value}]}, VerifyResult)["failures"][0]["actual"]
    assert type(read) is type(value)
    assert read == value
