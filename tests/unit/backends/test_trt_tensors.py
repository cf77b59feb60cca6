"""Optimization profiles, and memory layouts compared with the developer guide."""

import numpy as np
import pytest

from buildsys.backends.tensorrt.engine_tensors import (
    packed,
    packed_shape,
    resolve_profiles,
    unpacked,
)
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


def test_values_that_decide_shapes_have_ranges_of_their_own() -> None:
    values = {"values": {"min": [3], "opt": [6], "max": [12]}}
    profiles = resolve_profiles(INPUTS, DIMS, [{**GOOD, "scale": values}])
    assert profiles[0]["scale"] == {
        **dict.fromkeys(("min", "opt", "max"), (1,)),
        **{"min_values": (3,), "opt_values": (6,), "max_values": (12,)},
    }


LAYOUTS = {"chw2": 2, "chw4": 4, "chw16": 16, "chw32": 32, "hwc": 1, "hwc8": 8, "hwc16": 16}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3, 8, 33])
def test_each_element_is_where_the_format_puts_it(layout: str, channels: int) -> None:
    n, h, w, multiple = 2, 3, 5, LAYOUTS[layout]
    array = np.arange(n * channels * h * w, dtype=np.float32).reshape(n, channels, h, w) + 1
    memory = packed(array, layout)
    assert memory.flags["C_CONTIGUOUS"]
    assert memory.shape == packed_shape(array.shape, layout)
    rounded = -(-channels // multiple) * multiple
    corners = (0, 0, 0, 0), (1, channels - 1, 2, 4), (1, channels // 2, 1, 3)
    for batch, channel, row, column in corners:
        if layout.startswith("chw"):
            place = (
                ((batch * (rounded // multiple) + channel // multiple) * h + row) * w + column
            ) * multiple
            place += channel % multiple
        else:
            place = ((batch * h + row) * w + column) * rounded + channel
        assert memory.reshape(-1)[place] == array[batch, channel, row, column]
    assert memory.sum() == array.sum()  # what fills up is zero
    assert np.array_equal(unpacked(memory, layout, array.shape), array)


@pytest.mark.parametrize("layout", ["dhwc", "dhwc8", "cdhw32"])
def test_volumes_round_trip(layout: str) -> None:
    array = np.random.default_rng(0).standard_normal((2, 5, 3, 4, 6)).astype(np.float16)
    memory = packed(array, layout)
    assert memory.shape == packed_shape(array.shape, layout)
    assert np.array_equal(unpacked(memory, layout, array.shape), array)


def test_linear_is_as_it_is() -> None:
    array = np.ones((2, 3))
    assert packed(array, "linear") is array
    assert packed_shape((2, 3), "linear") == (2, 3)
    assert unpacked(array, "linear", (2, 3)) is array


@pytest.mark.parametrize(("shape", "layout"), [((1, 4, 2, 2), "dla_hwc4"), ((4, 2), "hwc8")])
def test_unsupported_layouts_and_ranks(shape: tuple[int, ...], layout: str) -> None:
    with pytest.raises(StageError, match=f"cannot have the format {layout} here"):
        packed(np.ones(shape), layout)
