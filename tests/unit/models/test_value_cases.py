from typing import Any

import numpy as np
import pytest

from buildsys.models.value_cases import last_rows, value_cases
from buildsys.onnx_graphs.tensors import Array, tensor_of

FLOATS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
IDS = np.arange(12).reshape(2, 6) % 5
NORMAL = {"mean": 0.0, "std": 1.0, "low": 0.0, "high": 1.0}


def cases(values: Array, dtype: str, data: Any = None) -> dict[str, Array]:
    entry = None if data is None else {**NORMAL, **data}
    made = dict(value_cases({"x": tensor_of(values, dtype)}, {"x": entry}))
    assert {case["x"].dtype for case in made.values()} <= {dtype}
    return {name: case["x"].values() for name, case in made.items()}


def test_floats_have_zeros_multiples_and_no_numbers() -> None:
    made = cases(FLOATS, "float32")
    assert list(made) == [
        "extremes-1", "extremes-2", "zeros", "ones", "small", "large", "huge", "nan", "inf",
    ]  # fmt: skip
    assert not made["zeros"].any()
    assert abs(made["large"]).max() == 100
    assert abs(made["extremes-2"]).max() == 6
    assert (np.isnan(made["nan"]).sum(), np.isinf(made["inf"]).sum()) == (2, 3)


def test_narrow_floats_have_no_multiples() -> None:
    assert {"large", "huge", "small"}.isdisjoint(cases(FLOATS, "float16"))
    assert "nan" in cases(FLOATS, "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        ("int64", "zero one negative hundreds wide"),
        ("int32", "zero one negative hundreds"),
        ("int8", "zero one negative"),
        ("uint8", "zero one"),
        ("bool", "zero one"),
    ],
)
def test_integers_stay_in_the_range_of_their_type(dtype: str, names: str) -> None:
    values = IDS % 2 if dtype in ("bool", "int8") else IDS
    if dtype == "uint8":
        values = values * 10
    made = {name.removesuffix("-integers"): case for name, case in cases(values, dtype).items()}
    assert made.keys() - {"extremes-1", "extremes-2"} == {*names.split()}
    assert (made.get("hundreds", np.ones(1)) % 2 == 1).all()


@pytest.mark.parametrize(
    ("dtype", "data", "names"),
    [
        ("float32", {"random": "uniform"}, {"extremes-1", "extremes-2", "zeros", "ones", "small"}),
        ("float32", {"random": "uniform", "low": 2, "high": 3}, {"extremes-1", "extremes-2"}),
        ("int64", {"random": "integers", "low": 0, "high": 5},
         {"extremes-1", "extremes-2", "zero-integers", "one-integers"}),
        ("float32", {"constant": 3}, set()),
        ("float32", {"npz": "x.npz"}, set()),
    ],
)  # fmt: skip
def test_values_stay_in_the_range_that_data_declare(
    dtype: str, data: dict[str, Any], names: set[str]
) -> None:
    assert set(cases(abs(FLOATS) if "float" in dtype else IDS, dtype, data)) == names


def test_indices_reach_the_last_row_of_the_largest_table_accepted() -> None:
    inputs = {"ids": tensor_of(IDS), "x": tensor_of(FLOATS)}
    made = last_rows(inputs, {}, (3, 40, 700), lambda feeds: feeds["ids"].array.max() < 50)
    assert made is not None
    assert (made["ids"].array.min(), made["ids"].array.max()) == (35, 39)
    assert made["x"] is inputs["x"]
    assert last_rows(inputs, {}, (700,), lambda _: False) is None
