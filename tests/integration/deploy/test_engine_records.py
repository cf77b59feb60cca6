"""Intact, damaged and foreign engine records in compatibility checks."""

import hashlib
import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from built_engines import copied, edit, with_gpu
from document_mutations import damaged, mutated, seeds

from buildsys import can_run
from buildsys.workers.result_file import TARGET_FIELDS

ROWS = re.findall(
    r"^\| (`.*?) \|", (Path(__file__).parents[3] / "docs/engine_json.md").read_text(), re.MULTILINE
)
DOCUMENTED = {name for row in ROWS for name in re.findall(r"`(\w+)`", row)}


def test_the_record_holds_everything_and_no_path(ort_built: Path, rtx_built: Path) -> None:
    for built in (ort_built, rtx_built):
        record = json.loads(built.with_name("engine.json").read_text())
        header = {*TARGET_FIELDS, "schema", "status", "reason", "hint", "started", "seconds"}
        undocumented = record.keys() - header - {"peak_rss_mib", "toolchain"} - DOCUMENTED
        assert not undocumented, f"docs/engine_json.md has no row for {undocumented}"
        fields = "onnx_sha256 engine_sha256 settings profiles inputs outputs layers files"
        fields += " precision_shares build_seconds phases built_with portability"
        assert set(fields.split()) <= record.keys()
        assert record["files"][built.name]["bytes"] == built.stat().st_size
        assert record["phases"].keys() >= {"prepare", "build", "read_back"}
        for file in built.parent.iterdir():
            assert str(built.parents[4]).encode() not in file.read_bytes(), (
                f"{file.name} knows where it was built"
            )
    assert json.loads(rtx_built.with_name("engine.json").read_text())["built_with"]["tensorrt_rtx"]


def test_an_engine_without_its_record(ort_built: Path, tmp_path: Path) -> None:
    alone = tmp_path / ort_built.name
    shutil.copy(ort_built, alone)
    result = can_run(alone)
    (reason,) = result.reasons
    assert (reason.kind, reason.problem) == ("record", "engine.json is missing")
    assert reason.remedy == "copy the engine's whole folder"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "engine.json is damaged: "),
        ("[]", "engine.json is not the record of an engine"),
        ('{"backend": "tensorrt_rtx", "status": "unavailable", "reason": "no GPU", "hint": "buy"}',
         "says that no engine was built: no GPU"),
    ],
)  # fmt: skip
def test_an_invalid_record(ort_built: Path, tmp_path: Path, content: str, expected: str) -> None:
    file = copied(ort_built, tmp_path)
    file.with_name("engine.json").write_text(content)
    assert expected in can_run(file).reasons[0].problem


def test_a_record_names_no_module_to_import(
    ort_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    file = copied(ort_built, tmp_path)
    edit(file, lambda figures: figures.update(backend="evil"))
    assert "engine.json names an unknown backend: 'evil'" in str(can_run(file))
    edit(file, lambda figures: figures.update(backend="onnxruntime"))
    edit(file, lambda figures: figures["built_with"].update(instructions=3))
    assert can_run(file)


def test_a_record_of_another_engine(ort_built: Path, rtx_built: Path, tmp_path: Path) -> None:
    file = copied(rtx_built, tmp_path)
    shutil.copy(ort_built.with_name("engine.json"), file.with_name("engine.json"))
    assert "is not the file that was built" in str(can_run(file))


def test_missing_and_different_plugins(
    rtx_built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(monkeypatch)
    file = copied(rtx_built, tmp_path)
    source = b"class Swish: ..."
    plugin = {
        "operator": "demo::swish", "name": "DoctorsSwish", "version": "1", "namespace": "",
        "file": "plugins/ops/swish_plugin.py", "file_sha256": hashlib.sha256(source).hexdigest(),
    }  # fmt: skip
    edit(file, lambda figures: figures.update(plugins=[plugin]))
    (reason,) = can_run(file).reasons
    assert reason.kind == "plugin"
    assert reason.problem == (
        "the plugin DoctorsSwish 1 for demo::swish is not registered in this process, "
        "and its file plugins/ops/swish_plugin.py is not in the engine's folder"
    )
    in_project = tmp_path / "project/plugins/ops/swish_plugin.py"
    in_project.parent.mkdir(parents=True)
    in_project.write_bytes(source)
    result = can_run(file, project=tmp_path / "project")
    assert result, str(result)
    assert result.notes == (
        "register before deserializing: DoctorsSwish (plugins/ops/swish_plugin.py)",
    )
    file.with_name("swish_plugin.py").write_bytes(source + b"changed")
    assert "swish_plugin.py has another SHA-256" in can_run(file).reasons[0].problem
    file.with_name("swish_plugin.py").write_bytes(source)
    assert can_run(file)


def fuzz_engine_records(engine_file: Path, draws: Iterator[random.Random]) -> None:
    """Check engines with changed records, half of them with a changed engine as well."""
    record, content = engine_file.with_name("engine.json"), engine_file.read_bytes()
    whole = json.loads(record.read_text())
    for draw in draws:
        text = json.dumps(mutated(whole, draw)).encode()
        record.write_bytes(damaged(text, draw) if draw.random() < 0.2 else text)
        spoiled = draw.random() < 0.5
        engine_file.write_bytes(damaged(content, draw) if spoiled else content)
        result = can_run(engine_file)
        assert str(result)
        json.dumps(result.as_json())
        kept = b'"files": ' + json.dumps(whole["files"]).encode() in record.read_bytes()
        if kept and engine_file.read_bytes() != content:
            assert not result, "a changed engine counts as one that can run"


def test_changed_engine_records(ort_built: Path, tmp_path: Path) -> None:
    fuzz_engine_records(copied(ort_built, tmp_path), seeds(0, 2.0))


@pytest.mark.fuzz
def test_changed_engine_records_for_longer(ort_built: Path, tmp_path: Path) -> None:
    fuzz_engine_records(copied(ort_built, tmp_path), seeds(1000, 20.0))
