"""Further cases, constant inputs, pictures and shown sections in the plan."""

from __future__ import annotations

from typing import Any

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
