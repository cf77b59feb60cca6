"""Differences that the last bits explain, and others."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from buildsys.onnx_graphs.agreement import ComparedCase
from buildsys.onnx_graphs.tensor_comparison import compare
from buildsys.onnx_graphs.tensors import Array, tensor_of
from buildsys.stages.common.rounding_noise import is_unstable

LIMITS = {"rtol": 1e-3, "cosine": 0.9999}
Y = np.arange(1.0, 21.0)


def compared(expected: Array = Y, policy: str = "", **outputs: Array) -> ComparedCase:
    """Compare outputs with ``expected``."""
    actual = {name: tensor_of(values) for name, values in outputs.items()}
    reference = {name: tensor_of(expected) for name in outputs}
    verdicts = {name: compare(actual[name], reference[name], LIMITS) for name in outputs}
    if policy:
        verdicts = {
            name: type(verdict)(verdict.max_abs, verdict.relative, policy=policy)
            for name, verdict in verdicts.items()
        }
    return ComparedCase({}, reference, actual, verdicts)


def in_turns(*draws: ComparedCase) -> Callable[[int], ComparedCase]:
    return lambda number: draws[number % len(draws)]


def moved(count: int, by: float = 1.0, start: int = 0) -> Array:
    """Return Y with ``count`` elements moved."""
    values = Y.copy()
    values[start : start + count] += by
    return values


def explained(actual: Array, *draws: Array, expected: Array = Y, policy: str = "") -> bool:
    cases = [compared(expected, policy, y=draw) for draw in draws or (expected,)]
    return is_unstable(compared(expected, policy, y=actual), in_turns(*cases), 1e-3)


def test_a_draw_that_moves_as_many_elements_explains_a_difference() -> None:
    assert explained(moved(2), moved(2, start=9))
    assert explained(moved(3), Y, moved(2, start=9), moved(1))
    assert not explained(moved(4), moved(2, start=9))
    assert not explained(moved(20), moved(10), moved(10, start=10), moved(13))
    assert not explained(moved(1), Y)
    assert not explained(moved(1))


def test_a_draw_explains_only_differences_of_its_size() -> None:
    assert explained(moved(1, 4.0), moved(1, 1.0))
    assert not explained(moved(1, 4.1), moved(1, 1.0))
    # within the limits, so no sign of instability
    assert not explained(moved(1, 0.1), moved(1, 0.01))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_never_explained(value: float) -> None:
    wrong = moved(1, value)
    assert not explained(wrong, wrong)
    # nor do they explain anything
    assert not explained(moved(1, 4.0), wrong)


def test_another_shape_or_type_is_never_explained() -> None:
    assert not explained(Y[:19], Y[:19])
    assert not explained(Y[None], Y[None])
    assert not explained(Y.astype(np.float32), Y.astype(np.float32))
    assert not explained(moved(1), Y[:19])


def test_a_limit_below_the_last_bit_asks_for_equal_outputs() -> None:
    failed, draw = compared(y=moved(1)), compared(y=moved(1, start=9))
    assert is_unstable(failed, in_turns(draw), 1e-15)  # float64 has steps of 2.2e-16
    assert not is_unstable(failed, in_turns(draw), 1e-16)
    assert not is_unstable(failed, in_turns(draw), 0.0)


def test_integers_count_as_well() -> None:
    labels = np.zeros(20, np.int64)
    first, three, all_ = (np.where(np.arange(20) < n, 1, 0) for n in (1, 3, 20))
    assert explained(first, three, expected=labels)
    assert not explained(first * 5, three, expected=labels)
    assert not explained(all_, three, expected=labels)


def test_infinities_of_both_sides_are_no_difference() -> None:
    masked = np.where(Y > 15, -math.inf, Y)
    actual, draw = masked.copy(), masked.copy()
    actual[0], draw[1] = 3.0, 4.0
    assert explained(actual, draw, expected=masked)


@pytest.mark.parametrize("policy", ["detections", "set"])
def test_outputs_without_an_order_count_values_in_any_order(policy: str) -> None:
    assert explained(moved(2)[::-1], moved(2, start=9), policy=policy)
    assert not explained(moved(20), moved(1), policy=policy)
    assert not explained(moved(1), moved(1, 0.05), policy=policy)


def test_no_draw_is_made_for_what_nothing_explains() -> None:
    def refuse(number: int) -> ComparedCase:
        raise AssertionError(number)

    assert not is_unstable(compared(y=Y[:19]), refuse, 1e-3)
    assert not is_unstable(compared(y=Y), refuse, 1e-3)
