"""Typing and quantization of TensorRT engines by the version of the builder."""

from typing import Any

import pytest
from planning import plan_of

from buildsys.plan.action import Action


def plan(
    version: str, calibration: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Action]:
    spec = {
        "model": "net",
        "source": {"torchvision": "resnet18"},
        "inputs": {"x": {"shape": ["batch", 3]}},
        "dims": {"batch": {"min": 1, "opt": 2, "max": 3}},
        "engines": [{"name": "e", "backend": "tensorrt", "precision": "fp16", **fields}],
        "calibration": calibration,
    }
    return plan_of(spec, version_of=lambda _: version)


@pytest.mark.parametrize(
    ("version", "typing", "resolved"),
    [
        ("8.6.0", "auto", "weak"),
        ("10.16.1.11 + 10.16.1.11 (tensorrt-cu12)", "auto", "weak"),
        ("11.4.0.106", "auto", "strong"),
        ("absent", "auto", "weak"),
        ("10.16.1", "strong", "strong"),
        ("11.4.0", "weak", "weak"),
    ],
)
def test_typing_depends_on_the_version(version: str, typing: str, resolved: str) -> None:
    actions = plan(version, typing=typing)
    engine = actions["engine:net:e"]
    assert engine.options["engine"]["typing"] == resolved
    graph = "simplify:net" if resolved == "weak" else "convert:net:fp16"
    assert engine.after == (graph,)
    assert ("convert:net:fp16" in actions) is (resolved == "strong")
    assert (
        engine.inputs["model"].path
        == f"net/{'simplify' if resolved == 'weak' else 'convert/fp16'}/model.onnx"
    )
    assert {
        actions[f"{stage}:net:e"].options["engine"]["typing"] for stage in ("verify", "bench")
    } == {resolved}
    assert engine.tools[0] == "tensorrt"
    assert engine.devices == ("gpu",)


INT8 = {"precision": "int8"}
EXPLICIT, IMPLICIT = ({**INT8, "quantization": kind} for kind in ("explicit", "implicit"))
MIXED = {"precision": "fp16", "layer_precisions": [{"layers": "/conv*", "precision": "int8"}]}


@pytest.mark.parametrize(
    ("version", "fields", "built_from", "said"),
    [
        ("8.6.0", INT8, "calibrator", None),
        ("10.16.1", IMPLICIT, "calibrator", None),
        ("8.6.0", EXPLICIT, "quantizers", "explicit"),
        ("10.16.1", {**EXPLICIT, "typing": "weak"}, "quantizers", "explicit"),
        ("10.16.1", {**INT8, "typing": "strong"}, "quantizers", None),
        ("10.16.1", {**EXPLICIT, "typing": "strong"}, "quantizers", None),
        ("11.4.0", INT8, "quantizers", None),
        ("11.4.0", EXPLICIT, "quantizers", None),
        # the engine then refuses both
        ("11.4.0", IMPLICIT, "quantizers", "implicit"),
        ("11.4.0", {**IMPLICIT, "typing": "weak"}, "calibrator", None),
        ("8.6.0", {"precision": "fp8"}, "quantizers", None),
        ("8.6.0", {"precision": "fp8", "quantization": "explicit"}, "quantizers", None),
        ("8.6.0", {**MIXED, "quantization": "implicit"}, "calibrator", "implicit"),
        ("8.6.0", MIXED, "", None),
        ("8.6.0", {"precision": "fp16"}, "", None),
    ],
)
def test_ranges_come_from_a_calibrator_or_with_the_graph(
    version: str, fields: dict[str, Any], built_from: str, said: str | None
) -> None:
    actions = plan(version, calibration={"data": {"x": {"random": "normal"}}}, **fields)
    engine = actions["engine:net:e"]
    precision = fields["precision"]
    graph = f"convert/{precision}" if built_from == "quantizers" else "simplify"
    assert engine.inputs["model"].path == f"net/{graph}/model.onnx"
    assert (f"convert:net:{precision}" in actions) is (built_from == "quantizers")
    assert ("calibrate:net" in actions) is bool(built_from)
    for held in (engine.options, engine.outputs):
        assert ("calibration" in held) is (built_from == "calibrator")
    assert (
        ("batches" in engine.inputs)
        is ("calibrate:net" in engine.after)
        is (built_from == "calibrator")
    )
    for stage in ("engine", "verify", "bench"):
        assert actions[f"{stage}:net:e"].options["engine"].get("quantization") == said


@pytest.mark.parametrize("version", ["8.6.0", "10.16.1", "11.4.0"])
@pytest.mark.parametrize("fields", [{}, INT8, {"precision": "fp8"}, {"precision": "fp32"}, MIXED])
def test_implied_fields_are_in_no_key(version: str, fields: dict[str, Any]) -> None:
    sections = {"calibration": {"data": {"x": {"random": "normal"}}}, **fields}
    usual = plan(version, **sections)
    assert all(
        "quantization" not in engine
        for engine in usual["report:net"].options["manifest"]["engines"]
    )
    strong = usual["engine:net:e"].options["engine"]["typing"] == "strong"
    written = "explicit" if strong else "implicit"
    if fields == INT8 or strong:
        assert plan(version, quantization=written, **sections) == usual
