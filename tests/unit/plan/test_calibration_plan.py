"""Calibration and quantization in the plan."""

import pytest
from planning import plan_engines as plan

from buildsys.plan.engine_typing import is_implicit

CALIBRATION = {"data": {"x": {"images": "data/calib"}}}


def test_a_model_without_int8_has_no_calibration_targets() -> None:
    found = plan({})
    assert len(found) == 8
    assert not {"calibration", "quantize", "convert"} & found["report:m"].options["manifest"].keys()
    assert "calibrate:m" not in plan({"precision": "fp16"})
    assert plan({"precision": "fp16"}).keys() == {
        "export:m",
        "reference:m",
        "simplify:m",
        "convert:m:fp16",
        "validate:m",
        "engine:m:e0",
        "verify:m:e0",
        "bench:m:e0",
        "report:m",
    }
    options = plan({"precision": "fp16"}, calibration=CALIBRATION)["convert:m:fp16"].options
    assert options.keys() == {"precision", "exclude", "tolerance", "cases"}


def test_one_calibration_serves_int8_and_fp8() -> None:
    found = plan(
        {"precision": "int8"}, {"precision": "fp8"}, {"precision": "int8"}, calibration=CALIBRATION
    )
    assert [target for target in found if target.startswith(("calibrate", "convert"))] == [
        "calibrate:m",
        "convert:m:int8",
        "convert:m:fp8",
    ]
    for precision in ("int8", "fp8"):
        action = found[f"convert:m:{precision}"]
        assert action.options["quantize"]["tool"] == "builtin"
        assert action.inputs["ranges"].path == "m/calibrate/ranges.json"
        assert "batches" not in action.inputs
        assert "calibrate:m" in action.after
    calibrate = found["calibrate:m"]
    assert calibrate.sources == ("data/calib/",)
    assert "pillow" in calibrate.tools
    assert calibrate.options["dims"] == {"batch": 4}
    assert "percentile" not in calibrate.options["calibration"]


def test_modelopt_reads_the_batches_and_is_in_the_key() -> None:
    found = plan({"precision": "int8"}, calibration=CALIBRATION, quantize={"tool": "modelopt"})[
        "convert:m:int8"
    ]
    assert found.inputs["batches"].path == "m/calibrate/batches.npz"
    assert "nvidia-modelopt" in found.tools
    cast = plan({"precision": "fp16"}, convert={"tool": "autocast"})["convert:m:fp16"]
    assert cast.options["tool"] == "autocast"
    assert "nvidia-modelopt" in cast.tools
    assert "exclude" not in cast.options
    excluded = plan({"precision": "fp16"}, convert={"exclude": ("/head",)})["convert:m:fp16"]
    assert excluded.options["exclude"] == ["/head"]


def test_a_weakly_typed_builder_gets_the_batches_and_the_graph_in_fp32() -> None:
    engine = {"backend": "tensorrt", "precision": "int8", "typing": "weak"}
    found = plan(engine, calibration={**CALIBRATION, "algorithm": "minmax"})
    assert "convert:m:int8" not in found
    action = found["engine:m:e0"]
    assert action.inputs["model"].path == "m/simplify/model.onnx"
    assert action.inputs["batches"].path == "m/calibrate/batches.npz"
    assert action.options["calibration"] == {"algorithm": "minmax"}
    assert action.outputs["calibration"].path == "m/engine/e0/calibration.cache"
    assert "calibrate:m" in action.after
    strong = plan({**engine, "typing": "strong"}, calibration=CALIBRATION)
    assert strong["engine:m:e0"].inputs["model"].path == "m/convert/int8/model.onnx"
    assert "batches" not in strong["engine:m:e0"].inputs


def test_only_calibrated_engines_are_kept_from_the_calibration_data() -> None:
    evaluate = {"data": {"npz": "val.npz"}, "metric": "top1"}
    planned = plan(
        {}, {"precision": "int8"}, {"precision": "fp16"}, calibration=CALIBRATION, evaluate=evaluate
    )
    own, calibrated, half = (planned[f"evaluate:m:e{number}"] for number in range(3))
    assert calibrated.inputs["batches"].path == "m/calibrate/batches.npz"
    assert "calibrate:m" in calibrated.after
    assert calibrated.sources == ("val.npz", "data/calib/")
    assert calibrated.options["calibration_images"]["x"]["images"] == "data/calib"
    for action in (own, half):
        assert "batches" not in action.inputs
        assert "calibrate:m" not in action.after
        assert action.sources == ("val.npz",)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tensorrt", "tensorrt_rtx"])
def test_int8_engines_take_the_quantizers_of_the_network(backend: str) -> None:
    engine = {"backend": backend, "name": "e", "precision": "int8"}
    actions = plan(engine, quantize={"tool": "source"})
    assert not {action.stage for action in actions.values()} & {"calibrate", "convert"}
    built = actions["engine:m:e"]
    assert built.inputs["model"].path == "m/simplify/model.onnx"
    assert built.options["engine"]["quantized"]
    assert not is_implicit(built.options["engine"])
    assert "nncf" not in built.tools
