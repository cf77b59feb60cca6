"""Engine folders that were made to exhaust the doctor."""

import os
from pathlib import Path

import pytest

from buildsys.deploy.can_run import can_run


@pytest.mark.parametrize("attack", ["huge", "fifo", "nested", "folder"])
def test_a_hostile_record_is_a_reason(tmp_path: Path, attack: str) -> None:
    (tmp_path / "engine.onnx").write_bytes(b"vtrt" + bytes(100))
    record = tmp_path / "engine.json"
    if attack == "huge":
        record.touch()
        os.truncate(record, 1 << 40)
    elif attack == "fifo":
        os.mkfifo(record)
    elif attack == "nested":
        record.write_text("[" * 100_000)
    else:
        record.mkdir()
    found = can_run(tmp_path / "engine.onnx")
    assert not found
    reason = found.reasons[0]
    assert reason.kind == "record"
    assert "\n" not in str(reason)


def test_an_engine_that_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "engine.onnx")
    assert "there is no engine file" in str(can_run(tmp_path / "engine.onnx"))


@pytest.mark.parametrize("engine", [None, 0, [], b"x", "x" * 5000, "a\0b", "/dev/null"])
def test_an_engine_that_is_no_path(engine: object) -> None:
    found = can_run(engine)  # type: ignore[arg-type]
    assert not found
    assert str(found).count("\n") == 2
