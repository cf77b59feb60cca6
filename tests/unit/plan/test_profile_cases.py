"""Golden cases of explicit profiles outside the cases of dims."""

from typing import Any

from planning import plan_of

from buildsys.plan.action import Action
from buildsys.plan.graph_points import profile_cases

MANIFEST: dict[str, Any] = {
    "model": "net",
    "source": {"python": "plugins/net.py:make"},
    "inputs": {"x": {"shape": ["batch", 4]}},
    "outputs": {"y": {}},
    "dims": {"batch": {"min": 1, "opt": 8, "max": 16}},
}
FOUR = {"min": 1, "opt": 8, "max": 16, "odd": 3}


def engine(*spans: tuple[int, int, int], name: str = "rtx", **fields: Any) -> dict[str, Any]:
    profiles = [{"x": {"min": (a, 4), "opt": (b, 4), "max": (c, 4)}} for a, b, c in spans]
    return {
        "backend": "tensorrt_rtx",
        "name": name,
        **({"profiles": profiles} if spans else {}),
        **fields,
    }


def plan(*engines: dict[str, Any], **changes: Any) -> dict[str, Action]:
    return plan_of({**MANIFEST, "engines": list(engines), **changes})


def batches(action: Action) -> dict[str, Any]:
    return {case: values["batch"] for case, values in action.options["cases"].items()}


def test_a_profile_equal_to_dims_adds_no_case() -> None:
    plain, explicit = plan(engine()), plan(engine((1, 8, 16)))
    differing = {target for target in plain if plain[target] != explicit[target]} - {"report:net"}
    assert differing == {"engine:net:rtx", "verify:net:rtx", "bench:net:rtx"}
    assert plain["verify:net:rtx"].options["cases"] == explicit["verify:net:rtx"].options["cases"]


def test_other_sizes_become_cases_named_after_them() -> None:
    actions = plan(engine((1, 1, 1), (2, 6, 12)), engine(name="other"))
    further = {"batch=2": 2, "batch=6": 6, "batch=12": 12}
    assert batches(actions["reference:net"]) == {**FOUR, **further}
    assert actions["reference:net"].outputs["case.batch=6"].path == "net/reference/batch=6.npz"
    assert batches(actions["verify:net:rtx"]) == {
        **FOUR,
        **further,
    }  # 3, the odd size of the second, is that of dims
    assert batches(actions["verify:net:other"]) == FOUR
    assert batches(actions["validate:net"]) == FOUR
    assert actions["verify:net:rtx"].inputs["case.batch=12"].path == "net/reference/batch=12.npz"


def test_a_profile_has_an_odd_size_in_steps_of_its_dimension() -> None:
    inputs = {"x": {"shape": ["h", 3]}}
    dims = {"h": {"min": 32, "opt": 64, "max": 512, "multiple_of": 32, "odd": 96}}
    within = {"x": {"min": [64, 3], "opt": [128, 3], "max": [256, 3]}}
    assert profile_cases(within, inputs, dims)["odd"] == {"h": 96}
    above = {"x": {"min": [128, 3], "opt": [256, 3], "max": [256, 3]}}
    assert profile_cases(above, inputs, dims)["odd"] == {"h": 160}


def test_profiles_go_through_surgery() -> None:
    dims = {"width": {"min": 2, "opt": 4, "max": 8}}
    inputs = {"x": {"shape": [5, "width"]}}
    wide = {"x": {"min": (5, 2), "opt": (5, 4), "max": (5, 8)}}
    fixed = {"backend": "tensorrt_rtx", "name": "rtx", "profiles": [wide]}
    steps = [{"rename": {"y": "z"}, "when": "after_simplify"}]
    actions = plan(fixed, dims=dims, inputs=inputs, surgery=steps)
    assert actions["verify:net:rtx"].options["cases"] == {
        "min": {"width": 2},
        "opt": {"width": 4},
        "max": {"width": 8},
        "odd": {"width": 3},
    }
    assert "width=5" not in actions["reference:net"].options["cases"]
    narrow = {"x": {"min": (5, 2), "opt": (5, 6), "max": (5, 7)}}
    actions = plan({**fixed, "profiles": [narrow]}, dims=dims, inputs=inputs, surgery=steps)
    assert actions["reference:net"].options["cases"]["width=6"] == {"width": 6}
    after = actions["surgery:net:after_simplify"]
    assert after.options["cases"]["width=6"] == {"dims": {"width": 6}, "golden": "width=6"}
    assert actions["verify:net:rtx"].inputs["case.width=6"] == after.outputs["case.width=6"]
