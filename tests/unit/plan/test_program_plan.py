"""Engines that are built from the captured program of PyTorch; without their libraries."""

from __future__ import annotations

from typing import Any

import pytest
from planning import plan_of

from buildsys.plan.action import Action

CALIBRATION = {"data": {"x": {"npz": "data/calibration.npz"}}}
ENGINE = {"backend": "executorch", "name": "e"}


def plan(*engines: dict[str, Any], **sections: Any) -> dict[str, Action]:
    manifest = {
        "model": "m",
        "source": {"torchvision": "resnet18"},
        "inputs": {"x": {"shape": ("batch", 3, 8, 8)}},
        "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
        "engines": engines or (ENGINE,),
        **sections,
    }
    return plan_of(manifest)


def test_the_program_is_the_only_input_of_the_engine() -> None:
    found = plan()
    engine, program = found["engine:m:e"], found["program:m"]
    assert [ref.path for ref in engine.inputs.values()] == ["m/program/program.pt2"]
    assert engine.inputs["program"] == program.outputs["program"]
    assert engine.after == ("program:m",)
    assert engine.advisory["origins"] == program.outputs["origins"]
    assert engine.options["dims"] == {"batch": {"min": 1, "opt": 4, "max": 8}}
    assert "torch" in engine.tools
    assert "executorch" in engine.tools


def test_the_program_depends_on_the_network_but_not_on_the_exporter_of_onnx() -> None:
    export: dict[str, Any] = {"export": {"opset": 18}}
    ours, other = plan()["program:m"], plan(**export)["program:m"]
    assert ours == other
    assert not ours.after
    assert ours.options["ranges"] == {"batch": {"min": 1, "max": 8, "multiple_of": 1}}
    source = {"torchvision": "resnet18", "seed": 1}
    assert plan(source=source)["program:m"].options != ours.options


def test_the_network_is_the_one_that_export_traces() -> None:
    source = {"python": "net.py:make", "weights": {"file": "w.pth"}, "device": "cuda"}
    found = plan(ENGINE, {"backend": "onnxruntime", "name": "ort"}, source=source)
    program, export = found["program:m"], found["export:m"]
    for field in ("sources", "weights", "environment", "alone_on_gpu"):
        assert getattr(program, field) == getattr(export, field)
    assert program.alone_on_gpu
    assert program.code == ("buildsys.stages.program.stage", *export.code[1:])
    assert {*program.tools} == {*export.tools, "sympy"} - {"onnx"}
    assert program.inputs == {}
    assert program.outputs["result"].path == "m/program/program.json"
    assert program.doc == "capture the program of m with torch.export"


def test_other_models_have_no_program() -> None:
    found = plan({"backend": "onnxruntime", "name": "ort"})
    assert not any(target.startswith("program") for target in found)
    shared = plan({"backend": "onnxruntime", "name": "ort"}, ENGINE)
    assert shared["engine:m:ort"] == found["engine:m:ort"]


def test_the_engine_is_compared_with_the_golden_outputs_of_the_network() -> None:
    verify = plan()["verify:m:e"]
    cases = ("min", "opt", "max", "odd", *verify.options["further"]["cases"])
    assert {ref.path for role, ref in verify.inputs.items() if role.startswith("case.")} == {
        f"m/reference/{case}.npz" for case in cases
    }


def test_int8_depends_on_the_batches() -> None:
    found = plan({**ENGINE, "precision": "int8"}, calibration=CALIBRATION)
    engine = found["engine:m:e"]
    assert engine.inputs["batches"].path == "m/calibrate/batches.npz"
    assert "torchao" in engine.tools
    assert not any(target.startswith("convert") for target in found)


@pytest.mark.parametrize("stage", ["program", "engine"])
def test_a_custom_operator_of_onnx_changes_nothing(stage: str) -> None:
    ops = ({"op": "my::swish", "function": "ops.py:swish"},)
    target = {"program": "program:m", "engine": "engine:m:e"}[stage]
    assert plan()[target] == plan(ops=ops)[target]
