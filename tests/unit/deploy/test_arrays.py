"""Arrays as tensors of an input: types, masks, strings."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from buildsys.backends.interface import Port
from buildsys.deploy.arrays import NUMPY, InputReader, as_array
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor


def reader(dtype: str) -> InputReader:
    return InputReader("m:e", Port("x", dtype, ("n",)))


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        ("float16", np.zeros(2, np.float16)),
        ("bool", np.array([True, False])),
        ("string", np.array(["a", ""])),
        ("string", np.array([b"a", "b"], object)),
        ("bfloat16", np.array([1, 2], ml_dtypes.bfloat16)),
        ("float8e4m3fn", np.array([1, 2], ml_dtypes.float8_e4m3fn)),
        ("int4", np.array([-8, 7], ml_dtypes.int4)),
        ("uint8", np.zeros(0, np.uint8)),
    ],
)
def test_arrays_of_the_type_are_read(dtype: str, array: np.ndarray) -> None:
    tensor = reader(dtype).read(array)
    assert (tensor.dtype, tensor.shape) == (dtype, array.shape)
    assert as_array(tensor, NUMPY).tolist() == [
        item.decode() if isinstance(item, bytes) else item for item in array.tolist()
    ]


@pytest.mark.parametrize(
    ("dtype", "given", "sentence"),
    [
        # numpy's default type is that of no type at all
        ("bfloat16", np.zeros(2), "is float64, and the engine takes bfloat16; convert it to ml"),
        ("int4", np.zeros(2), "is float64, and the engine takes int4; convert it to ml_dt"),
        ("string", np.zeros(2), "is float64, and the engine takes string; convert it to string"),
        ("bfloat16", np.zeros(2, np.uint16), "is uint16, and the engine takes bfloat16"),
        ("float32", np.zeros(2, ">f4"), "has a mask or the byte order of another machine; pass"),
        ("float32", np.ma.masked_array(np.zeros(2, np.float32)), "has a mask or the byte order"),
        ("bool", np.zeros(2, np.int64), "is int64, and the engine takes bool; convert it to bool"),
        ("int32", np.array([1, 1 << 33]), "has values beyond int32, the engine's type"),
        ("int32", np.zeros(2, np.uint32), "is uint32, and the engine takes int32"),
        ("string", np.array(["a", None]), "cannot be read: it is an array of Python objects; pass"),
    ],
)
def test_arrays_of_another_type_are_refused(dtype: str, given: Any, sentence: str) -> None:
    with pytest.raises(StageError) as refused:
        reader(dtype).read(given)
    assert str(refused.value).startswith(f"the input x of m:e {sentence}")


def test_small_int64_values_are_taken_for_int32() -> None:
    tensor = reader("int32").read(np.array([-(1 << 31), (1 << 31) - 1]))
    assert tensor.array.dtype == np.int32
    assert tensor.array.tolist() == [-(1 << 31), (1 << 31) - 1]


def test_a_fitting_array_is_not_copied() -> None:
    array = np.zeros((4,), np.float32)
    assert reader("float32").read(array).array is array
    assert as_array(Tensor(array, "float32"), NUMPY) is array


def test_sizes_outside_of_what_was_verified_are_refused() -> None:
    checked = InputReader("m:e", Port("x", "float32", ("n", 2)), [[1, 8], 2])
    for size in (1, 8):
        assert checked.read(np.zeros((size, 2), np.float32)).shape == (size, 2)
    for size in (0, 9):
        with pytest.raises(StageError, match=r"takes \[n from 1 to 8, 2\]; .* widen `dims`"):
            checked.read(np.zeros((size, 2), np.float32))


def test_raw_images_are_taken_alone_or_as_a_batch() -> None:
    port = Port("x", "uint8", ("batch", "height", "width", 3))
    images = InputReader(
        "m:e", port, [[1, 8], [4, 9, "height"], [4, 9, "width"], 3], {"color": "rgb"}
    )
    assert images.read(np.zeros((5, 6, 3), np.uint8)).shape == (1, 5, 6, 3)
    assert images.read(np.zeros((2, 5, 6, 3), np.uint8)).shape == (2, 5, 6, 3)
    convert = r"pass pixels from 0 to 255, such as numpy.asarray\(image.convert\('RGB'\)\)"
    for wrong in (
        np.zeros((5, 6, 4), np.uint8),  # RGBA
        np.zeros((5, 6), np.uint8),  # gray, or indices of a palette
        np.zeros((1, 3, 5, 6), np.uint8),  # channels first
        np.zeros((5, 6, 3), np.uint16),
        np.zeros((5, 6, 3), np.float32),
        [[1, 2], [3, 4]],
    ):
        with pytest.raises(StageError, match=convert):
            images.read(wrong)
    with pytest.raises(StageError, match=r"height from 4 to 9.*; convert the array, or widen"):
        images.read(np.zeros((3, 6, 3), np.uint8))
    gray = InputReader("m:e", Port("x", "uint8", (1, 4, 4, 1)), (), {"color": "gray"})
    with pytest.raises(StageError, match=r"convert\('L'\)"):
        gray.read(np.zeros((4, 4, 3), np.uint8))
