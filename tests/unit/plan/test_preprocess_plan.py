"""Preprocessing inside of engines: what its fields change, and what they leave alone."""

from typing import Any

import pytest
from planning import plan_engines

from buildsys.plan.action import Action
from buildsys.stages.table import ENGINE_STAGES

STEPS = {"inside": True, "size": ("height", "width"), "resize": 8}
DIMS = {
    "batch": {"min": 1, "opt": 4, "max": 8},
    "height": {"min": 8, "opt": 40, "max": 90},
    "width": {"min": 8, "opt": 60, "max": 90},
}
INT8 = {"name": "int8", "precision": "int8"}
EVALUATE = {"data": {"folder": "val"}, "metric": "top1"}


def planned(dims: Any = DIMS, **steps: Any) -> dict[str, Action]:
    inputs = {"x": {"shape": ("batch", 3, 8, 8), "preprocess": {**STEPS, **steps}}}
    calibration = {"data": {"x": {"npz": "x.npz"}}}
    return plan_engines(
        {}, INT8, inputs=inputs, dims=dims, calibration=calibration, evaluate=EVALUATE,
        bench={"baselines": ("torch", "onnxruntime"), "load": {"p99": "10ms"}},
        gates={"latency": {"tolerance": "5%"}},
    )  # fmt: skip


def changed(before: dict[str, Action], after: dict[str, Action]) -> set[str]:
    assert before.keys() == after.keys()
    return {target for target in before if before[target].options != after[target].options}


PREPROCESSED = {"preprocess:m:images", "preprocess:m:fp32", "preprocess:m:int8"}
ENGINES = {"engine:m:e0", "engine:m:int8"}


@pytest.mark.parametrize("steps", [{"mean": (0.5,)}, {"interpolation": "bicubic"}, {"resize": 9}])
def test_steps_are_in_the_keys_of_what_they_change_only(steps: dict[str, Any]) -> None:
    both = {"predict:m", "evaluate:m:e0", "evaluate:m:int8"}  # images are samples, too
    assert changed(planned(), planned(**steps)) == PREPROCESSED | ENGINES | both


def test_sizes_of_images_are_in_no_key_of_the_network() -> None:
    wider = {**DIMS, "width": {"min": 8, "opt": 60, "max": 99}}
    engines = {f"{stage}:m:{e}" for e in ("e0", "int8") for stage in ENGINE_STAGES}
    assert changed(planned(), planned(wider)) <= {"preprocess:m:images", "report:m", *engines}


def test_engines_are_built_from_and_compared_with_images() -> None:
    actions = planned()
    for engine, variant in (("e0", "fp32"), ("int8", "int8")):
        source = f"m/preprocess/{variant}/model.onnx"
        assert actions[f"engine:m:{engine}"].inputs["model"].path == source
        golden = actions[f"verify:m:{engine}"].inputs["case.opt"]
        assert golden.path == "m/preprocess/images/opt.npz"
        assert actions[f"engine:m:{engine}"].options["ranges"]["x"][1:] == [
            [8, 90],
            [8, 90],
            3,
        ]
    graph = actions["preprocess:m:int8"].inputs["model"]
    assert graph.path == "m/convert/int8/model.onnx"
    assert actions["calibrate:m"].options["inputs"]["x"]["shape"] == ["batch", 3, 8, 8]
    # baselines would do less work
    assert actions["bench:m:e0"].options["bench"]["baselines"] == []


def test_everything_that_runs_an_engine_gives_it_images() -> None:
    running = [action for action in planned().values() if "engine" in action.inputs]
    stages = {"verify", "evaluate", "bench", "load", "gate"}
    assert {action.stage for action in running} == stages
    for action in running:
        golden = [ref.path for role, ref in action.inputs.items() if role.startswith("case.")]
        assert {path.rpartition("/")[0] for path in golden} <= {"m/preprocess/images"}
        assert golden or action.stage == "evaluate"
        assert action.options.get("images") == (["x"] if action.stage == "evaluate" else None)


def test_preprocessing_outside_is_in_no_key() -> None:
    def targets(**steps: Any) -> dict[str, Action]:
        inputs = {"x": {"shape": ("batch", 3, 8, 8), "preprocess": steps}}
        return plan_engines({}, inputs=inputs)

    assert not changed(targets(mean=(0.5,)), targets(resize=9))
    assert not [target for target in targets() if target.startswith("preprocess")]
