"""Agreement of outputs with their references over all samples."""

import math
from typing import Any

import numpy as np
import pytest

from buildsys.manifest.default_limits import AGREEMENT_LIMITS, DEFAULT_LIMITS
from buildsys.onnx_graphs.agreement import (
    Agreement,
    ComparedCase,
    measure_agreement,
    output_agreements,
)
from buildsys.onnx_graphs.output_policies import REORDERED, compare_outputs
from buildsys.onnx_graphs.tensor_comparison import Comparison, compare
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
        "top1": 1.0,
        "top5": 1.0,
    }
    assert measured.problem(INT8) == ""


@pytest.mark.parametrize("offset", [0.0, 293.0, -1e4, 100.0 * np.arange(10)])
def test_a_constant_output_has_no_correlation_whatever_its_offset(offset: Any) -> None:
    expected = REFERENCE + offset
    measured = measure(np.full_like(expected, offset), expected)
    assert measured.correlation == measured.slope == 0.0
    assert measured.spread_error == pytest.approx(1.0, abs=0.02)
    assert "correlation 0 (at least 0.98)" in measured.problem(INT8)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1000.0), (1e-200, 0.0), (1e200, 0.0)])
def test_offset_and_scale_of_both_sides_change_no_figure(scale: float, offset: float) -> None:
    actual = REFERENCE + 0.1 * RNG.standard_normal(REFERENCE.shape)
    plain = measure(actual, REFERENCE)
    moved = measure(actual * scale + offset, REFERENCE * scale + offset)
    assert plain.figures() == pytest.approx(moved.figures(), rel=1e-6)
    assert plain.spread_error == pytest.approx(0.1, rel=0.1)


def test_faults_of_quantization_are_problems_and_its_rounding_is_none() -> None:
    step = np.abs(REFERENCE).max() / 127
    assert problem(np.round(REFERENCE / step) * step, REFERENCE) == ""
    assert "slope" in problem(REFERENCE * 0.8, REFERENCE)
    assert "slope" in problem(REFERENCE * 1.2, REFERENCE)
    assert "of the spread" in problem(REFERENCE + 0.3, REFERENCE)
    clipped = np.clip(REFERENCE, -0.2, 0.2)
    assert problem(clipped, REFERENCE).endswith("of the spread (allowed 0.2), 2 more")
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
    assert measured.problem(INT8).startswith("over 64 samples: error 1.0")
    assert "in slice 17 of axis 1 (allowed 0.5)" in measured.problem(INT8)
    assert measured.problem({**INT8, "channel_error": 1.1}) == ""
    images = RNG.standard_normal((4, 20, 3, 3))
    broken = images.copy()
    broken[:, 5] = 0.0
    assert measure(broken, images).channel == "slice 5 of axis 1"


def test_a_channel_of_few_values_is_not_judged_alone() -> None:
    expected = RNG.standard_normal((31, 10))
    assert measure(expected, expected).channel_error is None
    assert measure(REFERENCE, REFERENCE).channel_error == 0.0


@pytest.mark.parametrize(("share", "is_seen"), [(0.15, True), (2e-3, True), (1e-4, False)])
def test_a_quiet_channel_is_judged_by_its_own_spread(share: float, is_seen: bool) -> None:
    expected = REFERENCE.copy()
    expected[:, 3] *= share
    actual = expected + 0.02 * RNG.standard_normal(expected.shape)
    actual[:, 3] = 0.0
    assert ("in slice 3 of axis 1" in problem(actual, expected)) == is_seen


def test_classes_count_unless_they_nearly_tie() -> None:
    expected = np.eye(4)[np.arange(32) % 4]
    other = np.roll(expected, 1, axis=1)
    measured = measure(other, expected)
    assert measured.class_agreement == measured.top1 == 0.0
    assert "class agreement 0 (at least 0.97)" in measured.problem(INT8)
    scores = np.tile(np.arange(8.0), (32, 1))  # of a clear class, and of none
    for gap, tie, agreement in ((0.05, 0.2, 1.0), (0.9, 0.2, 0.0), (0.05, 0.01, 0.0)):
        close = np.concatenate([scores, np.full((32, 1), 7 + gap)], axis=1)
        swapped = close[:, [*range(7), 8, 7]]
        figures = measure(
            swapped + np.arange(32)[:, None], close + np.arange(32)[:, None], near_tie=tie
        )
        assert (figures.class_agreement, figures.top1, figures.top5) == (agreement, 0.0, 1.0)


@pytest.mark.parametrize("shape", [(64, 10), (64, 10, 4, 4), (16, 8, 50)])
def test_classes_under_a_large_common_part_are_compared(shape: tuple[int, ...]) -> None:
    axis = 2 if len(shape) == 3 else 1
    common = 20 * np.moveaxis(RNG.standard_normal((*np.delete(shape, axis), 1)), -1, axis)
    expected = common + RNG.standard_normal(shape)
    actual = common + RNG.standard_normal(shape)
    assert "class agreement" in problem(actual, expected)
    exact = common + expected + 0.01 * RNG.standard_normal(shape)
    assert problem(exact, common + expected) == ""


@pytest.mark.parametrize("shape", [(32,), (32, 1), (8, 40, 4), (8, 3, 6, 6)])
def test_colours_and_coordinates_are_no_classes(shape: tuple[int, ...]) -> None:
    values = RNG.standard_normal(shape)
    assert measure(values, values).class_agreement is None


@pytest.mark.parametrize(("rows", "others", "is_chance"), [(32, 2, True), (32, 3, False),
    (1000, 40, True), (1000, 42, False)])  # fmt: skip
def test_a_few_other_classes_are_chance(rows: int, others: int, is_chance: bool) -> None:
    measured = Agreement(rows, class_agreement=1 - others / rows, rows=rows)
    assert (measured.problem(INT8) == "") == is_chance


def test_the_largest_value_of_an_embedding_is_no_class() -> None:
    expected = RNG.standard_normal((256, 64))
    measured = measure(
        expected + 0.05 * RNG.standard_normal(expected.shape), expected, near_tie=0.1
    )
    assert measured.problem(INT8) == ""
    assert (measured.top1 or 1.0) < 0.97


def test_few_samples_show_no_variation() -> None:
    expected = RNG.standard_normal((3, 100)) + 5
    few = measure(np.full_like(expected, 5.0), expected)
    assert few.uninformative.startswith("the golden inputs have 3 samples of its shape, too few")
    assert "inputs.NAME.data" in few.uninformative
    assert few.problem(INT8) == ""


@pytest.mark.parametrize(
    ("offset", "spread", "is_seen"),
    [(293.0, 0.05, True), (293.0, 0.005, True), (0.0, 1.0, True), (1e6, 0.5, False)],
)
def test_a_constant_is_no_rounding_of_float32(offset: float, spread: float, is_seen: bool) -> None:
    expected = offset + spread * REFERENCE
    measured = measure(np.full_like(expected, offset), expected)
    for kind in ("validate", "fp32"):
        assert (measured.problem(AGREEMENT_LIMITS[kind]) != "") == is_seen


def test_an_output_that_hardly_varies_says_so() -> None:
    expected = np.full((8, 4), 3.0)
    for output in (expected, expected + 1e-7 * RNG.standard_normal(expected.shape)):
        measured = measure(expected, output)
        assert measured.figures() == {"samples": 8, "uninformative": measured.uninformative}
        assert "hardly varies" in measured.uninformative
        assert measured.problem(INT8) == ""


def test_infinities_are_left_out() -> None:
    expected, actual = REFERENCE.copy(), REFERENCE.copy()
    expected[:, 2] = actual[0, 0] = -math.inf
    for x, y in ((expected, expected), (actual, REFERENCE), (REFERENCE, actual)):
        assert measure(x, y).spread_error == 0.0
        assert problem(x, y) == ""


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


@pytest.mark.parametrize("dtype", ["bool", "complex64"])
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
        Comparison(passed=True, policy="detections"),
        Comparison(passed=True, note=REORDERED),
    ):
        assert output_agreements([compared(passed), compared(other)], INT8) == {}
    assert output_agreements([], INT8) == {}
    assert output_agreements([compared(passed)], {"rtol": 0.2, "slope": None}) == {}
    assert output_agreements([compared(passed)], {"slope": 0.1})["y"].samples == 8
    excused = compared(Comparison(passed=True, note="rounding"))
    assert set(output_agreements([excused], INT8)) == {"y"}
    assert output_agreements([excused], AGREEMENT_LIMITS["validate"]) == {}


@pytest.mark.parametrize("limits", [INT8, AGREEMENT_LIMITS["fp32"]])
@pytest.mark.parametrize(
    ("fields", "is_limited"), [({}, True), ({"rtol": 0.9}, False), ({"atol": 2.0}, False)]
)
def test_a_policy_with_limits_of_its_own_replaces_those_of_agreement(
    limits: Any, fields: Any, is_limited: bool
) -> None:
    expected, actual = REFERENCE, np.where(np.abs(REFERENCE) < 2, 0.2 * REFERENCE, REFERENCE)
    policy = {"policy": "elementwise", "rtol": None, "atol": None, "allow_zero": False, **fields}
    inputs, cases = {"x": tensor_of(np.ones((64, 2)))}, []
    for output in (actual, expected):
        outputs = {"y": tensor_of(output)}, {"y": tensor_of(expected)}
        comparisons = compare_outputs(*outputs, {"rtol": 2.0}, {"y": policy}, inputs=inputs)
        cases.append(ComparedCase(inputs, outputs[1], outputs[0], comparisons))
    measured = output_agreements(cases, limits)
    assert ("y" in measured and measured["y"].problem(limits) != "") == is_limited


@pytest.mark.parametrize(("policy", "limited"), [("elementwise", True), ("top_k", False)])
def test_policies_about_classes_limit_these_only(policy: str, limited: bool) -> None:
    case = compared(Comparison(passed=True, policy=policy))
    halved = ComparedCase(
        case.inputs, case.expected, {"y": tensor_of(case.expected["y"].array / 2)}, case.compared
    )
    measured = output_agreements([halved], INT8)["y"]
    assert ("slope" in measured.problem(INT8)) == limited
    constant = ComparedCase(
        case.inputs, case.expected, {"y": tensor_of(np.zeros((8, 3)))}, case.compared
    )
    assert "class agreement" in output_agreements([constant] * 4, INT8)["y"].problem(INT8)


def test_the_first_axis_counts_samples_if_it_is_that_of_an_input() -> None:
    passed = Comparison(passed=True)
    assert output_agreements([compared(passed, (5, 3))] * 4, INT8)["y"].samples == 4
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


def test_a_smaller_variation_is_correlated_but_flat() -> None:
    measured = measure(0.25 * REFERENCE, REFERENCE)
    assert measured.correlation == pytest.approx(1.0)
    assert measured.slope == pytest.approx(0.25)
    assert measured.class_agreement == 1.0


def test_a_figure_at_its_limit_is_within_it() -> None:
    at_limit = Agreement(9, 0.2, 0.98, 1.0, 0.5, "a channel", 0.97, rows=10_000)
    assert at_limit.problem(INT8) == ""
    assert Agreement(9, slope=1.25).problem({"slope": 0.25}) == ""
    assert Agreement(9, slope=0.75).problem({"slope": 0.25}) == ""
    assert Agreement(9, slope=0.74).problem({"slope": 0.25}) != ""


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


def judged(actual: Array, expected: Array, cases: int = 4) -> str:
    """Judge integers of an int8 engine, case by case and over all."""
    limits = {**DEFAULT_LIMITS["int8"], **INT8}
    compared_cases = []
    for x, y in zip(np.split(actual, cases), np.split(expected, cases), strict=True):
        outputs = {"y": tensor_of(y)}, {"y": tensor_of(x)}
        comparison = compare(x, y, limits)
        if not comparison.passed:
            return comparison.problem
        inputs = {"x": tensor_of(np.ones((len(y), 2)))}
        compared_cases.append(ComparedCase(inputs, *outputs, {"y": comparison}))
    measured = output_agreements(compared_cases, limits).get("y")
    return measured.problem(limits) if measured else ""


def test_counts_of_low_precision_are_compared_like_floats_unless_few_differ() -> None:
    counts = RNG.integers(9_000, 11_000, 32)
    near = counts + RNG.integers(-9, 10, 32)
    assert judged(near, counts) == ""
    assert judged(np.where(np.arange(32) == 3, 0, counts), counts) == ""
    assert "correlation" in judged(RNG.permutation(counts), counts)
    assert judged(np.full_like(counts, 10_000), counts) != ""
    assert judged(counts + 2_000, counts) != ""
    labels = RNG.integers(0, 10, 320)
    assert judged((labels + (np.arange(320) % 5 == 0)) % 10, labels) != ""
    assert not compare(near, counts, {"rtol": 0.3}).passed


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
@pytest.mark.parametrize(("others", "is_wrong"), [(1, False), (4, True), (16, True)])
def test_a_few_labels_of_low_precision_may_differ(dtype: str, others: int, is_wrong: bool) -> None:
    labels = RNG.integers(0, 2, 32)
    changed = labels.copy()
    changed[:: 32 // others] ^= 1
    assert (judged(changed.astype(dtype), labels.astype(dtype)) != "") == is_wrong
    assert not compare(changed.astype(dtype), labels.astype(dtype), {"rtol": 0.3}).passed


def test_8_bit_images_of_low_precision_are_compared_like_floats() -> None:
    image = RNG.integers(0, 255, (8, 6, 20), np.uint8)
    assert judged(image + np.uint8(1), image) == ""
    flat = RNG.integers(0, 4, image.shape, np.uint8) + np.arange(40, 160, 6, dtype=np.uint8)
    assert judged(flat + RNG.integers(0, 2, flat.shape, np.uint8), flat) == ""
    assert judged(np.clip(image, 100, 150), image) != ""
    assert judged(np.full_like(image, 128), image) != ""
