"""A function on numpy arrays as the reference of a network."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buildsys.errors import StageError
from buildsys.models.numpy_function import NumpyFunction
from buildsys.models.outputs import name_outputs
from buildsys.onnx_graphs.tensors import Tensor, tensor_of

CODE = """\
import numpy as np

def double(x, factor=2): return (x * factor).astype(x.dtype)
def two(x, y): return x + y, x
def named(x): return {"b": x, "a": x + 1, "other": x}
def nothing(x): return None
def wide(x): return x.astype("float64")
def text(x): return object()
def failing(x): raise ValueError("no")
def writing(x):
    x += 1
    return x
"""
OUTPUT = {"shape": None, "dtype": None, "key": None}
X = tensor_of(np.arange(6, dtype=np.float32).reshape(2, 3))


def call(
    folder: Path, name: str, outputs: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, Tensor]:
    (folder / "ref.py").write_text(CODE)
    declared = {output: {**OUTPUT, **fields} for output, fields in (outputs or {}).items()}
    function = NumpyFunction({"numpy": f"ref.py:{name}", "kwargs": kwargs}, declared, folder)
    inputs = {"x": X, "y": X} if name == "two" else {"x": X}
    return function(inputs, {"batch": 2})


def test_outputs_have_declared_names_or_numbers(tmp_path: Path) -> None:
    found = call(tmp_path, "double", factor=3)
    assert {name: tensor.array.tolist() for name, tensor in found.items()} == {
        "output0": (X.array * 3).tolist()
    }
    assert list(call(tmp_path, "two", {"sum": {}, "first": {}})) == ["sum", "first"]
    assert list(call(tmp_path, "named", {"a": {}, "c": {"key": "b"}})) == ["a", "c"]
    assert list(call(tmp_path, "named")) == ["b", "a", "other"]
    call(tmp_path, "double", {"y": {"shape": ["batch", None], "dtype": "float32"}})


def test_a_function_cannot_change_the_golden_inputs(tmp_path: Path) -> None:
    call(tmp_path, "writing")
    assert X.array[0, 0] == 0


@pytest.mark.parametrize(
    ("name", "outputs", "expected"),
    [
        ("absent", {}, "ref.py has no absent"),
        ("failing", {}, "ref.py:failing failed: ValueError: no (ref.py:9)"),
        ("nothing", {"y": {}}, "ref.py:nothing returned NoneType, without a tensor"),
        ("double", {"y": {}, "z": {}}, "returned output0 [2, 3]; the manifest declares y, z"),
        ("named", {"y": {}}, "other [2, 3]; the manifest declares y; correct the key of y"),
        ("double", {"y": {"shape": []}}, "the shape [2, 3], the manifest declares []"),
        ("text", {}, "returned object as output 0; only tensors can be outputs"),
        ("wide", {"y": {"dtype": "float32"}},
         "output y is float64, the manifest declares float32; correct outputs.y"),
        ("double", {"y": {"shape": [2, "batch"]}},
         "output y has the shape [2, 3], the manifest declares [2, 2]"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    tmp_path: Path, name: str, outputs: dict[str, Any], expected: str
) -> None:
    with pytest.raises(StageError) as caught:
        call(tmp_path, name, outputs)
    assert expected in str(caught.value)


def test_no_tensor_is_left_out_for_two_names_of_another() -> None:
    declared = {"a": {"key": "y"}, "b": {"key": "y"}}
    with pytest.raises(StageError, match="declare one output per tensor"):
        name_outputs({"y": X.array, "z": X.array}, declared, np.ndarray, "forward")


def test_a_declared_bfloat16_may_be_returned_as_float32(tmp_path: Path) -> None:
    assert call(tmp_path, "double", {"y": {"dtype": "bfloat16"}})["y"].dtype == "bfloat16"
