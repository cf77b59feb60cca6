"""Differences that the last bits explain, and others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensor_comparison import compare
from buildsys.onnx_graphs.tensors import Array, tensor_of
from buildsys.stages.common.stability import Difference, are_explained, is_explained

LIMITS = {"rtol": 1e-3, "cosine": 0.9999}
Y = np.arange(1.0, 21.0)


def difference(actual: Array, expected: Array = Y, policy: str = "") -> Difference:
    ours, theirs = tensor_of(actual), tensor_of(expected)
    comparison = compare(ours, theirs, LIMITS)
    if policy:
        comparison = type(comparison)(comparison.max_abs, comparison.relative, policy=policy)
    return Difference(ours, theirs, comparison)


def moved(count: int, by: float = 1.0, start: int = 0) -> Array:
    """Return Y with ``count`` elements moved."""
    values = Y.copy()
    values[start : start + count] += by
    return values


def explained(actual: Array, *draws: Array) -> bool:
    return is_explained(difference(actual), [difference(draw) for draw in draws], 1e-3)


def test_a_draw_that_moves_as_many_elements_explains_a_difference() -> None:
    assert explained(moved(2), moved(2, start=9))
    assert explained(moved(3), Y, moved(2, start=9), moved(1))
    assert not explained(moved(4), moved(2, start=9))
    assert not explained(moved(20), moved(10), moved(10, start=10), moved(13))
    assert not explained(moved(1), Y)
    assert not explained(moved(1))


def test_a_draw_explains_only_differences_of_its_size() -> None:
    assert explained(moved(1, 16.0), moved(1, 1.0))
    assert not explained(moved(1, 16.1), moved(1, 1.0))
    # within the limits, so no sign of instability
    assert not explained(moved(1, 0.1), moved(1, 0.01))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_never_explained(value: float) -> None:
    wrong = moved(1, value)
    assert not explained(wrong, wrong)
    # nor do they explain anything
    assert not explained(moved(1, 100.0), wrong)


def test_another_shape_or_type_is_never_explained() -> None:
    assert not explained(Y[:19], Y[:19])
    assert not explained(Y[None], Y[None])
    assert not explained(Y.astype(np.float32), Y.astype(np.float32))
    assert not explained(moved(1), Y[:19])


def test_integers_count_as_well() -> None:
    labels = np.zeros(20, np.int64)
    one, three, all_ = (np.where(np.arange(20) < n, 1, 0) for n in (1, 3, 20))
    draws = [difference(three, labels)]
    assert is_explained(difference(one, labels), draws, 1e-3)
    assert not is_explained(difference(all_, labels), draws, 1e-3)


def test_infinities_of_both_sides_are_no_difference() -> None:
    masked = np.where(Y > 15, -math.inf, Y)
    actual, draw = masked.copy(), masked.copy()
    actual[0], draw[1] = 3.0, 4.0
    assert is_explained(difference(actual, masked), [difference(draw, masked)], 1e-3)


@pytest.mark.parametrize("policy", ["detections", "set"])
def test_outputs_without_an_order_are_compared_by_distance(policy: str) -> None:
    failure = difference(moved(20), policy=policy)
    assert is_explained(failure, [difference(moved(1), policy=policy)], 1e-3)
    assert not is_explained(failure, [difference(moved(1, 0.05), policy=policy)], 1e-3)


def test_every_output_needs_an_explanation() -> None:
    failures = {"a": difference(moved(1)), "b": difference(moved(1))}
    both = {"a": difference(moved(1, start=2)), "b": difference(moved(1, start=3))}
    one = {"a": both["a"], "b": difference(Y)}
    other = {"a": difference(Y), "b": both["b"]}

    def explained_by(*draws: dict[str, Difference]) -> bool:
        return are_explained(failures, lambda number: draws[number % len(draws)], 1e-3)

    assert explained_by(both)
    assert explained_by(one, other)
    assert not explained_by(one)
    assert not explained_by({"a": both["a"]})


def test_no_draw_is_made_for_what_nothing_explains() -> None:
    def refuse(number: int) -> dict[str, Difference]:
        raise AssertionError(number)

    assert not are_explained({"a": difference(Y[:19])}, refuse, 1e-3)
    assert not are_explained({}, refuse, 1e-3)


def test_a_graph_that_refuses_changed_numbers_explains_nothing() -> None:
    def refuse(number: int) -> dict[str, Difference]:
        raise StageError(f"no {number}")

    assert not are_explained({"a": difference(moved(1))}, refuse, 1e-3)
