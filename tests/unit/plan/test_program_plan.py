"""Engines that are built from the captured program of PyTorch; without their libraries."""

from typing import Any

from planning import plan_engines

from buildsys.plan.action import Action

ENGINE = {"backend": "executorch", "name": "e"}


def plan(*engines: dict[str, Any], **sections: Any) -> dict[str, Action]:
    return plan_engines(*(engines or (ENGINE,)), **sections)


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


def test_a_mode_decides_the_device_and_its_clock() -> None:
    torch = {"backend": "torch", "name": "e", "precision": "fp16"}
    gpu, cpu = plan({**torch, "mode": "compile"}), plan(torch)
    assert gpu["engine:m:e"].devices == ("gpu",)
    assert "gpu" in gpu["bench:m:e"].options["bench"]
    assert cpu["engine:m:e"].devices == ("cpu",)
    assert "gpu" not in cpu["bench:m:e"].options["bench"]


def test_other_models_have_no_program() -> None:
    found = plan({"backend": "onnxruntime", "name": "ort"})
    assert not any(target.startswith("program") for target in found)
    shared = plan({"backend": "onnxruntime", "name": "ort"}, ENGINE)
    assert shared["engine:m:ort"] == found["engine:m:ort"]


def test_its_roofline_has_the_work_of_the_graph_of_the_network() -> None:
    sources = plan({"backend": "onnxruntime", "name": "ort"}, ENGINE)["report:m"].options["sources"]
    assert sources == {"ort": "simplify:m", "e": "simplify:m"}
