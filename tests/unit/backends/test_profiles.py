"""Optimization profiles from dims, and explicit ones checked."""

from __future__ import annotations

import pytest

from buildsys.backends.tensorrt.profiles import resolve_profiles
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


def test_explicit_profiles_are_used_as_they_are() -> None:
    narrow = {**GOOD, "ids": {"min": [1, 8], "opt": [1, 8], "max": [1, 8]}}
    first, second = resolve_profiles(INPUTS, DIMS, [GOOD, narrow])
    assert first["ids"]["max"] == (4, 32)
    assert second["ids"]["max"] == (1, 8)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"idz": GOOD["ids"]}, "there is no input 'idz', the inputs are ids, image, scale"),
        (
            {"ids": {"min": [8], "opt": [2, 16], "max": [4, 32]}},
            "ids: min [8] must have the 2 dimensions of",
        ),
        (
            {"ids": {"min": [3, 8], "opt": [2, 16], "max": [4, 32]}},
            "ids: axis 0: min 3, opt 2, max 4 are not in asc",
        ),
        (
            {"image": {"min": [1, 1, 8], "opt": [1, 3, 8], "max": [4, 3, 8]}},
            "image: axis 1 is always 3, not 1 to 3",
        ),
        ({"scale": {"min": [1], "opt": [1], "max": [2]}}, "scale: axis 0 is always 1, not 1 to 2"),
    ],
)
def test_the_problems_of_a_profile_are_reported(change: dict, problem: str) -> None:
    with pytest.raises(StageError) as caught:
        resolve_profiles(INPUTS, DIMS, [GOOD, {**GOOD, **change}])
    assert f"profile 1: {problem}" in str(caught.value)


def test_a_dynamic_input_without_a_range_is_an_error() -> None:
    with pytest.raises(StageError, match="profile 0: no range for image, whose shape is dynamic"):
        resolve_profiles(INPUTS, DIMS, [{"ids": GOOD["ids"]}])
    with pytest.raises(
        StageError, match="there is no profile, but the shape of ids, image is dynamic"
    ):
        resolve_profiles(INPUTS, DIMS, [])


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(StageError) as caught:
        resolve_profiles(
            INPUTS,
            DIMS,
            [{"x": GOOD["ids"]}, {**GOOD, "scale": {"min": [], "opt": [1], "max": [1]}}],
        )
    for part in (
        "profile 0: there is no input 'x'",
        "profile 0: no range for ids, image",
        "profile 1: scale: min []",
    ):
        assert part in str(caught.value)
