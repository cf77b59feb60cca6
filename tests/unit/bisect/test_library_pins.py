"""Libraries that recorded builds had in other versions, and mixtures of them."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from buildsys.bisect.libraries import Environments, Pin, library_differences, recorded_pins
from buildsys.plan.action import Action, ToolchainRef

PLACE = ToolchainRef("rtx", "/opt/rtx/bin/python")
NUMPY, ONNX, ORT = (Pin("", name, "1", "2") for name in ("numpy", "onnx", "onnxruntime"))
OTHER = Pin("rtx", "onnx", "1", "3")


def action(stage: str, **fields: Any) -> Action:
    return Action(f"{stage}:m", stage, "m", "", {}, {}, {}, **fields)


def test_pins_belong_to_the_interpreter_that_has_the_library() -> None:
    actions = {
        a.target: a
        for a in (
            action("export"),
            action("engine", toolchain=PLACE),
            action("bench", toolchain=PLACE, peer_tools=("tensorrt",)),
        )
    }
    numbers = {"tool:onnx": "1", "tool:tensorrt": "1", "tool:python": "1", "device:gpu": "1"}
    numbers |= {"tool:rtx/onnx": "1", "tool:new": "absent"}
    recorded = dict.fromkeys(actions, numbers)
    here = {
        target: {**dict.fromkeys(recorded[target], "2"), "tool:rtx/onnx": "2", "tool:new": "1"}
        for target in actions
    }
    here["engine:m"]["tool:onnx"] = "3"
    names = {"onnx", "tensorrt", "python", "new", "rtx/onnx"}
    pins = recorded_pins(actions, recorded, here, names)
    assert pins == {ONNX, OTHER, Pin("", "tensorrt", "1", "2"), Pin("rtx", "tensorrt", "1", "2")}
    assert recorded_pins(actions, recorded, here, {"onnx"}) == {ONNX, OTHER}
    assert recorded_pins(actions, here, here, names) == set()


@pytest.mark.parametrize("swapped", [False, True])
def test_a_library_without_a_pin_is_the_one_here(swapped: bool) -> None:
    newer = NUMPY._replace(version="3")
    sides = [{NUMPY, ONNX, OTHER, ORT}, {newer, ORT}]
    reasons = {
        each.library: (each.reason.old, each.reason.new)
        for each in library_differences(*(sides[::-1] if swapped else sides))
    }
    expected = {("", "numpy"): ("1", "3"), ("", "onnx"): ("1", "2"), ("rtx", "onnx"): ("1", "3")}
    assert reasons == {k: v[::-1] if swapped else v for k, v in expected.items()}


def test_libraries_that_pip_does_not_have_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    info = "ours-1.dist-info"
    with zipfile.ZipFile(tmp_path / "ours-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: ours\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    ours, gone = (Pin("", name, "1", "2") for name in ("ours", "no-such-library"))
    assert Environments(tmp_path, tmp_path / "made").available([ours, gone], {}) == {ours}
    assert "no-such-library==1 cannot be had: pip cannot install" in capsys.readouterr().err
