import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from buildsys.onnx_graphs.tensor_comparison import Comparison, compare
from buildsys.onnx_graphs.tensors import tensor_of

LIMITS = {"rtol": 1e-4, "cosine": 0.9999, "atol": None, "top1": None}
FLOATS = st.floats(-1e6, 1e6, width=32)
ARRAYS = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=5), elements=FLOATS
)
QUICK = settings(max_examples=60, deadline=None)


@given(ARRAYS, st.integers(-300, 240))
@QUICK
def test_the_relative_error_does_not_depend_on_scale(x: np.ndarray, exponent: int) -> None:
    # real networks have outputs from 1e-14 to 1e+6; powers of two keep the values exact
    scale = 2.0**exponent
    b = x.astype(np.float64)
    a = b * (1 + 1e-3)
    assume(np.abs(b).max() > 1e-30)
    plain, scaled = compare(a, b, LIMITS), compare(a * scale, b * scale, LIMITS)
    assert not plain.passed
    assert not scaled.passed
    assert scaled.relative == pytest.approx(plain.relative, rel=1e-9)
    assert scaled.relative == pytest.approx(1e-3, rel=1e-6)
    assert scaled.cosine == pytest.approx(plain.cosine, rel=1e-9)


@given(ARRAYS, st.data(), st.sampled_from([math.nan, math.inf, -math.inf]), st.booleans())
@QUICK
def test_a_non_finite_value_on_one_side_fails(
    x: np.ndarray, data: st.DataObject, value: float, swap: bool
) -> None:
    index = tuple(data.draw(st.integers(0, size - 1)) for size in x.shape)
    broken = x.copy()
    broken[index] = value
    pair = (x, broken) if swap else (broken, x)
    found = compare(*pair, {"rtol": math.inf, "cosine": -1.0})
    assert not found.passed
    assert found.non_finite == 1
    assert found.worst_index == index


def test_nan_at_equal_places_is_equal_and_hides_no_error() -> None:
    b = np.array([math.nan, 1.0, 2.0, math.nan])
    assert compare(b, b.copy(), LIMITS).passed
    a = b.copy()
    a[1] = 1.5
    found = compare(a, b, LIMITS)
    assert not found.passed
    assert (found.non_finite, found.worst_index) == (0, (1,))
    a = np.array([math.nan, 1.0, math.nan, math.nan])
    assert compare(a, b, LIMITS).non_finite == 1
    assert compare(b, a, LIMITS).problem.endswith("NaN or infinite in the reference itself")


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_an_output_without_a_finite_value_proves_nothing(value: float) -> None:
    b = np.full((2, 3), value)
    assert compare(b, b, LIMITS).uninformative == "it is NaN or infinite everywhere"
    b[0, 0] = 1.0
    assert compare(b, b, LIMITS).uninformative == ""
    b[0, 0] = 0.0
    assert compare(b, b, {**LIMITS, "top1": 1.0}).passed


def test_the_largest_column_is_never_nan() -> None:
    b = np.array([[math.nan, 1.0, 2.0], [math.nan, 5.0, 3.0]])
    assert compare(b, b, LIMITS).top1 == 1.0
    a = np.array([[math.nan, 2.0, 1.0], [math.nan, 5.0, 3.0]])
    assert compare(a, b, LIMITS).top1 == 0.5


def test_shared_infinities_are_equal_and_do_not_hide_an_error() -> None:
    b = np.array([math.inf, -math.inf, 1.0, 2.0])
    assert compare(b, b.copy(), LIMITS).passed
    a = b.copy()
    a[2] = 1.5
    found = compare(a, b, LIMITS)
    assert (found.passed, found.worst_index, found.relative) == (False, (2,), 0.25)


def test_top1_of_masked_logits_is_that_of_the_others() -> None:
    b = np.array([[-math.inf, -1.0, -2.0], [-2.0, -math.inf, -1.0]])
    a = np.array([[-math.inf, -2.0, -1.0], [-2.0, -math.inf, -1.0]])
    assert compare(a, b, {"rtol": 9.0}).top1 == 0.5
    assert compare(b, b, {"rtol": 9.0}).top1 == 1.0


def test_opposite_infinities_differ() -> None:
    unlimited = {"rtol": math.inf, "cosine": -1.0}
    found = compare(np.array([math.inf, 1.0]), np.array([-math.inf, 1.0]), unlimited)
    assert (found.passed, found.non_finite, found.worst_index) == (False, 1, (0,))


def test_a_wrong_tiny_output_fails() -> None:
    b = np.array([1e-14, 2e-14, -1e-14])
    assert not compare(np.zeros(3), b, LIMITS).passed
    assert not compare(b[::-1], b, LIMITS).passed
    assert compare(b * (1 + 1e-6), b, LIMITS).passed


def test_zeros_are_equal_only_to_zeros() -> None:
    zeros = np.zeros((2, 2), np.float32)
    assert compare(zeros, -zeros, LIMITS).relative == 0.0
    found = compare(zeros + np.float32(1e-30), zeros, LIMITS)
    assert (found.passed, found.relative) == (False, math.inf)
    assert found.figures()["relative"] is None


def test_shape_and_type_are_compared_first() -> None:
    found = compare(np.zeros((2, 3)), np.zeros((3, 2)), LIMITS)
    assert found.problem == "has shape [2, 3] instead of [3, 2]"
    found = compare(np.zeros(2, np.float32), np.zeros(2), LIMITS)
    assert found.problem == "has type float32 instead of float64"


def test_ties_agree_in_top1() -> None:
    assert compare(np.array([[2.0, 1.9]]), np.array([[2.0, 2.0]]), {"rtol": 1}).top1 == 1.0


def test_large_integers_are_compared_exactly() -> None:
    b = np.array([0, 2**62], np.int64)
    found = compare(b + np.array([0, 1]), b, LIMITS)
    assert (found.passed, found.worst_index, found.worst_actual) == (False, (1,), 2**62 + 1)


def test_types_unknown_to_numpy_are_compared_by_value() -> None:
    b = tensor_of(np.array([1.0, 2.0]), "bfloat16")
    assert compare(b, b, LIMITS).passed
    found = compare(tensor_of(np.array([1.0, 2.5]), "bfloat16"), b, LIMITS)
    assert found.relative == 0.25


def test_values_near_the_end_of_float64_do_not_overflow() -> None:
    b = np.array([1.5e308, -1.5e308])
    assert compare(b, b, LIMITS).passed
    assert not compare(-b, b, LIMITS).passed


def test_a_sentence_has_as_many_digits_as_differing_values_need() -> None:
    golden = np.array([[1.0]], np.float32)
    strict = {**LIMITS, "rtol": 1e-12}
    found = compare(np.nextafter(golden, np.float32(2)), golden, strict)
    assert found.sentence("it", "PyTorch").startswith("at [0, 0] it has 1.00000012 and PyTorch 1 (")


# boxes up to 100 next to scores up to 1
B = np.array([[100.0, 1.0], [90.0, 0.5], [80.0, 0.25]])


def changed(row: int, column: int, amount: float, expected: np.ndarray = B) -> np.ndarray:
    a = expected.copy()
    a[row, column] += amount
    return a


def test_one_of_two_columns_can_be_wrong() -> None:
    found = compare(changed(1, 1, 0.5), B, {"rtol": 0.01})
    assert (found.passed, found.worst_index) == (False, (1, 1))
    assert "slice 1 of axis 1 is off by 0.5, 0.5 of its own magnitude, hidden by" in found.problem


def test_without_a_relative_limit_small_slices_must_still_be_right() -> None:
    assert not compare(changed(1, 1, 0.5), B, {"atol": 1.0}).passed
    assert not compare(changed(1, 1, 0.5), B, {"atol": 1.0, "rtol": None}).passed


def test_only_large_shares_of_excused_errors_are_noted() -> None:
    noisy = changed(0, 0, 0.5)
    assert compare(changed(0, 1, 0.05, noisy), B, {"rtol": 0.01}).note == ""
    found = compare(changed(0, 1, 0.2, noisy), B, {"rtol": 0.01})
    assert (found.passed, found.worst_index) == (True, None)
    assert "slice 1 of axis 1 is off by 0.2" in found.note
    tiny = B * [1.0, 1e-9]
    assert compare(changed(0, 1, 5e-10, tiny), tiny, {"rtol": 0.01}).note == ""


def test_equal_zeros_are_neither_passed_nor_failed_in_a_result_file() -> None:
    for dtype in (np.float32, np.int64):
        found = compare(np.zeros(3, dtype), np.zeros(3, dtype), {"rtol": 0.1})
        figures = found.figures()
        assert (figures["passed"], figures["uninformative"]) == (None, "it is zero everywhere")
        assert not compare(np.ones(3, dtype), np.ones(3, dtype), {"rtol": 0.1}).uninformative


def test_policy_and_note_are_in_the_result_file() -> None:
    figures = Comparison(0.0, 0.0, passed=True, policy="set", note="n").figures()
    assert (figures["policy"], figures["note"], figures["passed"]) == ("set", "n", True)
    assert not {"policy", "note", "uninformative"} & Comparison().figures().keys()


def test_a_verdict_can_be_replaced() -> None:
    failed = compare(changed(0, 0, 50.0), B, {"rtol": 0.01})
    passed = failed.as_passed()
    assert (passed.passed, passed.relative, passed.problem) == (True, 0.5, "")
    assert (passed.worst_index, passed.worst_actual, passed.worst_expected) == (None, None, None)
    again = passed.as_failed(B, B, "wrong")
    assert (again.passed, again.problem) == (False, "wrong")
    assert again.worst_index is None
