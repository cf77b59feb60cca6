"""Further cases, constant inputs, pictures and shown sections in the plan."""

from typing import Any

import pytest
from planning import plan_of

from buildsys.plan.action import Action, FileRef

POLICY = {"policy": "elementwise"}


def plan(**sections: Any) -> dict[str, Action]:
    manifest = {
        "model": "m",
        "source": {"python": "net.py:make"},
        "inputs": {"x": {"shape": ("batch", 4)}},
        "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
        "engines": ({"backend": "onnxruntime", "name": "e"},),
        **sections,
    }
    return plan_of(manifest)


def test_validate_knows_the_further_cases_and_how_their_sizes_follow() -> None:
    found = plan()
    further = found["reference:m"].options["further"]
    assert found["validate:m"].options["further"] == {
        "cases": [*further["sizes"], *further["values"]],
        "shapes": {"x": ["batch", 4]},
        "graph": "simplified",
    }
    assert found["validate:m"].inputs["sizes"] == FileRef("m/reference/sizes.npz", optional=True)


def test_without_further_cases_no_stage_has_any() -> None:
    found = plan(validate={"drawn_sizes": 0, "other_values": False})
    for target in ("reference:m", "validate:m", "verify:m:e"):
        assert "further" not in found[target].options


def test_cases_that_surgery_cannot_carry_are_compared_with_the_unmodified_graph() -> None:
    found = plan(
        surgery=({"rename": {"x": "z"}},),
        outputs={"output0": {"compare": POLICY}},
    )
    validate = found["validate:m"]
    names = validate.options["further"]["cases"]
    read = {role: ref for role, ref in validate.inputs.items() if role.startswith("unmodified.")}
    graph = found["export:m"].outputs
    assert read == {
        **{f"unmodified.case.{n}": FileRef(f"m/reference/{n}.npz", optional=True) for n in names},
        **{f"unmodified.{role}": graph[role] for role in ("model", "model.data")},
    }
    assert {"exported.model", "simplified.model", "case.min", "assembled"} <= {*validate.inputs}
    assert validate.options["compare_unmodified"]["output0"]["policy"] == "elementwise"
    assert {"export:m", "reference:m"} <= {*validate.after}
    assert "compare_unmodified" not in plan(surgery=({"rename": {"x": "z"}},))["validate:m"].options
    assert not any(role.startswith("unmodified.") for role in plan()["validate:m"].inputs)


@pytest.mark.parametrize(
    ("shape", "batch", "samples"),
    [
        (["batch", 4], {"min": 1, "opt": 4, "max": 8}, ({"batch": 8}, 4)),
        (["batch", 4], {"min": 1, "opt": 4, "max": 64}, ({"batch": 32}, 1)),
        (["batch", 4], {"min": 5, "opt": 5, "max": 60, "multiple_of": 5}, ({"batch": 30}, 2)),
        (["batch", 4], {"min": 48, "opt": 48, "max": 48}, ({"batch": 48}, 1)),
        ([1, "batch"], {"min": 4, "opt": 6, "max": 8}, ({"batch": 6}, 32)),
    ],
)
def test_low_precision_has_32_samples(shape: Any, batch: Any, samples: Any) -> None:
    exact = {"backend": "onnxruntime", "name": "ort"}
    low = {"backend": "tensorrt_rtx", "name": "rtx", "precision": "fp16"}
    sections = {"inputs": {"x": {"shape": shape}}, "dims": {"batch": batch}}
    actions = plan(**sections, engines=(exact, low))
    options = actions["reference:m"].options["samples"]
    assert (options["dims"], options["calls"]) == samples
    readers = {target for target, action in actions.items() if "samples" in action.inputs}
    assert readers == {"convert:m:fp16", "verify:m:rtx"}
    assert "samples" not in plan(**sections, engines=(exact,))["reference:m"].options


def test_golden_files_are_cases_of_every_precision() -> None:
    engines = [
        {"name": precision, "backend": "onnxruntime", "precision": precision}
        for precision in ("fp32", "fp16", "int8")
    ]
    calibration = {"data": {"x": {"random": "normal"}}}
    actions = plan(
        reference={"npz": ["a/tf.npz", "b/tf.npz"]}, engines=engines, calibration=calibration
    )
    golden = ["golden-1", "golden-2"]  # the files have one name
    for stage in ("validate:m", *(f"verify:m:{engine['name']}" for engine in engines)):
        assert [c for c in actions[stage].options["further"]["cases"] if "golden" in c] == golden
    assert actions["verify:m:int8"].options["further"]["cases"] == golden
    assert {"a/tf.npz", "b/tf.npz"} <= {*actions["reference:m"].sources}
