"""Agreement of outputs with their references over all samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from buildsys.manifest.default_limits import AGREEMENT_LIMITS
from buildsys.onnx_graphs.agreement import (
    Agreement,
    ComparedCase,
    measure_agreement,
    output_agreements,
)
from buildsys.onnx_graphs.output_policies import REORDERED
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import Array, tensor_of

INT8 = AGREEMENT_LIMITS["int8"]
RNG = np.random.default_rng(0)
REFERENCE = RNG.standard_normal((64, 10))


def measure(
    actual: Any, expected: Any, counts_samples: bool = True, near_tie: float = 0.0
) -> Agreement:
    pairs = [(tensor_of(np.asarray(actual)), tensor_of(np.asarray(expected)))]
    measured = measure_agreement(pairs, counts_samples=counts_samples, near_tie=near_tie)
    assert measured is not None
    return measured


def problem(actual: Array, expected: Array) -> str:
    return measure(actual, expected).problem(INT8)


def test_equal_outputs_agree_entirely() -> None:
    measured = measure(REFERENCE, REFERENCE)
    assert measured.figures() == {
        "samples": 64,
        "spread_error": 0.0,
        "correlation": pytest.approx(1.0),
        "slope": pytest.approx(1.0),
        "channel_error": 0.0,
        "class_agreement": 1.0,
    }
    assert measured.problem(INT8) == ""


@pytest.mark.parametrize("offset", [0.0, 293.0, -1e4, 100.0 * np.arange(10)])
def test_a_constant_output_has_no_correlation_whatever_its_offset(offset: Any) -> None:
    expected = REFERENCE + offset
    measured = measure(np.full_like(expected, offset), expected)
    assert measured.correlation == measured.slope == 0.0
    assert measured.spread_error == pytest.approx(1.0, abs=0.02)
    assert "correlation with the reference is 0.000 (at least 0.98)" in measured.problem(INT8)


def test_an_offset_of_both_sides_changes_no_figure() -> None:
    actual = REFERENCE + 0.1 * RNG.standard_normal(REFERENCE.shape)
    plain, moved = measure(actual, REFERENCE), measure(actual + 1000, REFERENCE + 1000)
    assert plain.figures() == pytest.approx(moved.figures(), rel=1e-6)
    assert plain.spread_error == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_the_scale_of_both_sides_changes_no_figure(scale: float) -> None:
    actual = REFERENCE + 0.05 * RNG.standard_normal(REFERENCE.shape)
    plain, scaled = measure(actual, REFERENCE), measure(actual * scale, REFERENCE * scale)
    assert plain.figures() == pytest.approx(scaled.figures(), rel=1e-6)


def test_faults_of_quantization_are_problems_and_its_rounding_is_none() -> None:
    step = np.abs(REFERENCE).max() / 127
    assert problem(np.round(REFERENCE / step) * step, REFERENCE) == ""
    assert "slope" in problem(REFERENCE * 0.8, REFERENCE)
    assert "slope" in problem(REFERENCE * 1.2, REFERENCE)
    assert "its error is" in problem(REFERENCE + 0.3, REFERENCE)
    clipped = np.clip(REFERENCE, -0.2, 0.2)
    assert "slope" in problem(clipped, REFERENCE)
    swapped = REFERENCE[:, [1, 0, *range(2, 10)]]
    assert "correlation" in problem(swapped, REFERENCE)
    assert "correlation" in problem(np.roll(REFERENCE, 1, axis=0), REFERENCE)


def test_one_wrong_channel_of_many_is_named() -> None:
    expected = RNG.standard_normal((64, 200))
    actual = expected.copy()
    actual[:, 17] = 0.0
    measured = measure(actual, expected)
    assert measured.channel == "slice 17 of axis 1"
    assert measured.channel_error == pytest.approx(1.0, abs=0.05)
    assert measured.problem(INT8).startswith("over 64 samples, the error of slice 17 of axis 1 is ")
    assert measured.problem({**INT8, "channel_error": 1.1}) == ""
    images = RNG.standard_normal((4, 20, 3, 3))
    broken = images.copy()
    broken[:, 5] = 0.0
    assert "slice 5 of axis 1" in problem(broken, images)


def test_a_channel_of_few_values_or_small_spread_is_not_judged_alone() -> None:
    expected = RNG.standard_normal((31, 10))
    assert measure(expected, expected).channel_error is None
    assert measure(REFERENCE, REFERENCE).channel_error == 0.0
    expected = REFERENCE.copy()
    expected[:, 3] *= 1e-3
    actual = expected.copy()
    actual[:, 3] = 0.0
    assert problem(actual, expected) == ""


def test_classes_count_unless_they_nearly_tie() -> None:
    expected = np.eye(4)[np.arange(32) % 4]
    other = np.roll(expected, 1, axis=1)
    measured = measure(other, expected)
    assert measured.class_agreement == 0.0
    assert "its class is the reference's in 0% (at least 0.97)" in measured.problem(INT8)
    wrong_once = expected.copy()
    wrong_once[0] = other[0]
    measured = measure(wrong_once, expected)
    assert measured.class_agreement == 31 / 32
    assert "class" not in measured.problem(INT8)  # one of 32 is no share of 97 %
    wrong_once[1] = other[1]
    assert "in 94% (at least 0.97)" in measure(wrong_once, expected).problem(INT8)
    close = np.tile([1.0, 0.99], (32, 1)) * np.arange(1, 33)[:, None]
    assert measure(close[:, ::-1], close).class_agreement == 0.0
    assert measure(close[:, ::-1], close, near_tie=0.2).class_agreement == 1.0
    for shape in ((32,), (32, 1), (8, 4, 2)):
        values = RNG.standard_normal(shape)
        assert measure(values, values).class_agreement is None


def test_few_samples_are_compared_by_the_variation_within_them() -> None:
    expected = RNG.standard_normal((1, 100)) + 5
    assert measure(np.full_like(expected, 5.0), expected).correlation == 0.0
    assert measure(expected, expected).correlation == pytest.approx(1.0)
    assert measure(expected, expected).channel_error is None


def test_an_output_that_hardly_varies_says_so() -> None:
    expected = np.full((8, 4), 3.0)
    for output in (expected, expected + 1e-7 * RNG.standard_normal(expected.shape)):
        measured = measure(expected, output)
        assert measured.figures() == {"samples": 8, "uninformative": measured.uninformative}
        assert "hardly varies" in measured.uninformative
        assert measured.problem(INT8) == ""


def test_equal_infinities_are_left_out() -> None:
    expected = REFERENCE.copy()
    expected[:, 2] = -math.inf
    assert measure(expected, expected).spread_error == 0.0
    assert problem(expected, expected) == ""


def test_samples_of_the_commonest_shape_count() -> None:
    pairs = [(np.ones((2, 3)), np.ones((2, 3))), (REFERENCE, REFERENCE)]
    tensors = [(tensor_of(a), tensor_of(b)) for a, b in pairs]
    measured = measure_agreement(tensors, counts_samples=True)
    assert measured is not None
    assert measured.samples == 64
    scalars = [(tensor_of(np.array(v)), tensor_of(np.array(v))) for v in (1.0, 2.0, 3.0, 4.0)]
    measured = measure_agreement(scalars, counts_samples=True)
    assert measured is not None
    assert (measured.samples, measured.correlation) == (4, pytest.approx(1.0))
    assert measure(np.ones((6, 2)), np.ones((6, 2)), counts_samples=False).samples == 1


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64"])
def test_nothing_is_said_of_other_numbers(dtype: str) -> None:
    values = tensor_of(np.arange(8).astype(dtype))
    assert measure_agreement([(values, values)], counts_samples=True) is None


def test_bits_of_bfloat16_are_numbers() -> None:
    values = tensor_of(REFERENCE.astype(np.float32), "bfloat16")
    measured = measure_agreement([(values, values)], counts_samples=True)
    assert measured is not None
    assert measured.class_agreement == 1.0


def compared(comparison: Comparison, shape: tuple[int, ...] = (8, 3)) -> ComparedCase:
    values = tensor_of(RNG.standard_normal(shape))
    inputs = {"x": tensor_of(np.ones((8, 2)))}
    return ComparedCase(inputs, {"y": values}, {"y": values}, {"y": comparison})


def test_only_outputs_compared_element_by_element_are_measured() -> None:
    passed = Comparison(passed=True)
    assert set(output_agreements([compared(passed)], INT8)) == {"y"}
    for other in (
        Comparison(passed=False),
        Comparison(passed=True, policy="set"),
        Comparison(passed=True, note=REORDERED),
    ):
        assert output_agreements([compared(passed), compared(other)], INT8) == {}
    assert output_agreements([], INT8) == {}
    assert output_agreements([compared(passed)], {"rtol": 0.2, "slope": None}) == {}
    assert output_agreements([compared(passed)], {"slope": 0.1})["y"].samples == 8


def test_the_first_axis_counts_samples_if_it_is_that_of_an_input() -> None:
    passed = Comparison(passed=True)
    assert output_agreements([compared(passed, (5, 3))], INT8)["y"].samples == 1
    assert output_agreements([compared(passed, (8, 3))] * 2, INT8)["y"].samples == 16


def test_an_output_that_is_left_out_hides_no_other_one() -> None:
    passed, failed = Comparison(passed=True), Comparison(passed=False)
    case = compared(passed)
    values = case.expected["y"]
    both = ComparedCase(
        case.inputs,
        {"x": values, "y": values},
        {"x": values, "y": values},
        {"x": failed, "y": passed},
    )
    assert set(output_agreements([both], INT8)) == {"y"}


@pytest.mark.parametrize(("spread_error", "agrees"), [(0.5, 1.0), (0.01, 0.0), (None, 0.0)])
def test_classes_within_the_allowed_error_nearly_tie(
    spread_error: float | None, agrees: float
) -> None:
    close = np.tile([1.0, 0.9], (8, 1)) * np.array([1, -1] * 4)[:, None]
    case = ComparedCase(
        {"x": tensor_of(np.ones((8, 2)))},
        {"y": tensor_of(close)},
        {"y": tensor_of(close[:, ::-1].copy())},
        {"y": Comparison(passed=True)},
    )
    measured = output_agreements([case], {"slope": 1.0, "spread_error": spread_error})["y"]
    assert measured.class_agreement == agrees


def test_a_smaller_variation_is_correlated_but_flat() -> None:
    measured = measure(0.25 * REFERENCE, REFERENCE)
    assert measured.correlation == pytest.approx(1.0)
    assert measured.slope == pytest.approx(0.25)
    assert measured.other_classes == 0


def test_a_figure_at_its_limit_is_within_it() -> None:
    at_limit = Agreement(9, 0.2, 0.98, 1.0, 0.35, "a channel", 0.97, other_classes=2)
    assert at_limit.problem(INT8) == ""
    assert Agreement(9, slope=1.25).problem({"slope": 0.25}) == ""
    assert Agreement(9, slope=0.75).problem({"slope": 0.25}) == ""
    assert Agreement(9, slope=0.74).problem({"slope": 0.25}) != ""


def test_an_infinity_of_one_side_is_left_out() -> None:
    actual = REFERENCE.copy()
    actual[0, 0] = math.inf
    assert measure(actual, REFERENCE).spread_error == 0.0
    assert measure(REFERENCE, actual).spread_error == 0.0


def test_slices_of_32_values_on_both_axes_are_judged() -> None:
    expected = RNG.standard_normal((32, 2))
    assert measure(expected, expected).channel_error == 0.0
    pairs = RNG.standard_normal((16, 40, 2))
    broken = pairs.copy()
    broken[..., 1] *= 0.2
    assert measure(broken, pairs).channel == "slice 1 of axis 2"
    assert measure(broken[:3], pairs[:3]).channel_error is None  # too few samples


def test_an_empty_output_says_nothing() -> None:
    empty = np.zeros((0, 4))
    assert measure(empty, empty).uninformative == "it is empty"
