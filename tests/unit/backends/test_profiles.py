"""Optimization profiles from dims, explicit ones, and checks against the graph."""

from __future__ import annotations

import pytest

from buildsys.backends.tensorrt.engine_tensors import check_against_graph, resolve_profiles
from buildsys.errors import StageError

INPUTS = {
    "ids": {"shape": ["batch", "length"], "dtype": "int64"},
    "image": {"shape": ["batch", 3, 8], "dtype": "float32"},
    "scale": {"shape": [1], "dtype": "float32"},
}
DIMS = {"batch": {"min": 1, "opt": 2, "max": 4}, "length": {"min": 8, "opt": 16, "max": 32}}
GOOD = {
    "ids": {"min": [1, 8], "opt": [2, 16], "max": [4, 32]},
    "image": {"min": [1, 3, 8], "opt": [1, 3, 8], "max": [4, 3, 8]},
}


def test_dims_give_one_profile_of_the_dynamic_inputs() -> None:
    assert resolve_profiles(INPUTS, DIMS, None) == [
        {
            "ids": {"min": (1, 8), "opt": (2, 16), "max": (4, 32)},
            "image": {"min": (1, 3, 8), "opt": (2, 3, 8), "max": (4, 3, 8)},
        }
    ]


def test_a_model_without_dynamic_inputs_has_no_profile() -> None:
    assert resolve_profiles({"scale": INPUTS["scale"]}, {}, None) == []
    fixed = {"scale": {"min": [1], "opt": [1], "max": [1]}}
    assert resolve_profiles({"scale": INPUTS["scale"]}, {}, [fixed]) == []


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"ids": (-1, -1)}, "profile 0: the graph has no input image, only ids"),
        ({"ids": (-1,), "image": (-1, 3, 8)}, "the graph's input ids has 1 dimensions, not 2"),
        ({"ids": (-1, 16), "image": (-1, 3, 8)}, "fixes axis 1 of ids at 16, not 8 to 32"),
        (
            {"ids": (-1, -1), "image": (-1, 3, 8), "mask": (-1,)},
            "the graph's input mask has dynamic sizes, and there is no range for it",
        ),
    ],
)
def test_profiles_that_do_not_fit_the_graph(
    shapes: dict[str, tuple[int, ...]], problem: str
) -> None:
    with pytest.raises(StageError) as caught:
        check_against_graph(resolve_profiles(INPUTS, DIMS, None), shapes)
    assert problem in str(caught.value)
    with pytest.raises(StageError, match="image has dynamic sizes"):
        check_against_graph([], {"image": (-1, 3, 8)})


def test_values_that_decide_shapes_need_a_range() -> None:
    values = {"values": {"min": [3], "opt": [6], "max": [12]}}
    profiles = resolve_profiles(INPUTS, DIMS, [{**GOOD, "scale": values}])
    assert profiles[0]["scale"] == {
        **dict.fromkeys(("min", "opt", "max"), (1,)),
        **{"min_values": (3,), "opt_values": (6,), "max_values": (12,)},
    }
    shapes = {"ids": (-1, -1), "image": (-1, 3, 8), "scale": (1,)}
    check_against_graph(profiles, shapes, {"scale"})
    with pytest.raises(StageError, match="the values of the input scale decide shapes inside"):
        check_against_graph(resolve_profiles(INPUTS, DIMS, [GOOD]), shapes, {"scale"})
