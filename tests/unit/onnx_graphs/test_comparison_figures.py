"""Figures and sentences of a comparison, value by value."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from buildsys.manifest.default_limits import AGREEMENT_LIMITS
from buildsys.onnx_graphs.agreement import Agreement
from buildsys.onnx_graphs.result_types import format_beyond
from buildsys.onnx_graphs.tensor_comparison import Comparison, broken_limits, compare

OPEN: dict[str, Any] = {"rtol": math.inf, "cosine": -1.0}


def test_a_result_file_has_every_figure() -> None:
    found = compare(np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]), OPEN)
    figures = dict(found.figures())
    assert 0.99 < figures.pop("cosine") < 1.0  # type: ignore[operator]
    assert {name: figures[name] for name in ("max_abs", "relative", "top1", "passed")} == {
        "max_abs": 1.0, "relative": 0.25, "top1": 1.0, "passed": True,
    }  # fmt: skip
    broken = Comparison(math.nan, math.inf, None, math.nan).figures()
    assert {
        name: broken[name] for name in ("max_abs", "relative", "cosine", "top1")
    } == dict.fromkeys(("max_abs", "relative", "cosine", "top1"))
    assert broken["passed"] is False


def test_a_result_file_has_the_worst_element() -> None:
    found = compare(np.array([1.0, 3.0]), np.array([1.0, 2.0]), {"rtol": 0.1})
    assert found.failure() == {
        "index": [1],
        "actual": 3.0,
        "expected": 2.0,
        "problem": "relative error 0.5, allowed 0.1",
    }
    found = compare(np.array([1.0, -math.inf]), np.array([1.0, math.nan]), OPEN)
    assert (found.failure()["actual"], found.failure()["expected"]) == ("-inf", "nan")
    found = compare(np.array([7]), np.array([8]), OPEN)
    assert (found.failure()["actual"], found.failure()["expected"]) == (7, 8)
    assert Comparison(problem="p").failure()["index"] is None


@pytest.mark.parametrize("limit", [0.02, 0.998, 3.0, 1e-7, -0.5])
@pytest.mark.parametrize("distance", [0.5, 1e-3, 1e-6, 1e-12, -1e-12, -1e-6, -1e-3, -0.5])
def test_a_figure_beyond_its_limit_shows_it(limit: float, distance: float) -> None:
    value = limit + distance * abs(limit)
    text = format_beyond(value, limit)
    assert (float(text) > limit, float(text) < limit) == (distance > 0, distance < 0)
    assert len(text) <= 10 or abs(distance) < 1e-3


def test_messages_of_limits_show_that_they_are_crossed() -> None:
    beyond, below = 1 + 1e-7, 1 - 1e-7
    least, most = {"cosine": 0.999, "top1": 0.6}, {"rtol": 0.5, "atol": 0.25}
    limits = {**least, **most, **AGREEMENT_LIMITS["int8"]}
    figures = Comparison(0.25 * beyond, 0.5 * beyond, 0.999 * below, 0.6 * below)
    agreement = Agreement(
        9, 0.2 * beyond, 0.98 * below, 1 - 0.1 * beyond, 0.5 * beyond, "a channel", 0.97 * below
    )
    agreement = replace(agreement, rows=10**15)
    messages = [*broken_limits(figures, limits)]
    messages += [
        agreement.problem({name: limit}) for name, limit in AGREEMENT_LIMITS["int8"].items()
    ]
    pairs = [re.search(r"(0[.]\d+).*(allowed|at least) ([\d.]+)", text) for text in messages]
    assert len(pairs) == 9
    for pair in pairs:
        assert pair is not None
        value, word, limit = pair.groups()
        assert float(value) > float(limit) if word == "allowed" else float(value) < float(limit)


def test_a_sentence_has_both_sides_and_all_broken_limits() -> None:
    found = compare(
        np.array([0.1234567891, -1.0]),
        np.array([0.1234567891, 1.0]),
        {"rtol": 0.1, "atol": 1e-3, "cosine": 0.5},
    )
    limits = (
        "relative error 2, allowed 0.1, absolute error 2, allowed 0.001, cosine -0.97, at least 0.5"
    )
    assert found.sentence() == f"at [1] the output has -1 and the reference 1 ({limits})"
    assert Comparison(problem="has no rows").sentence("a", "b") == "has no rows"


def test_numbers_are_shown_with_six_digits_and_other_values_as_they_are() -> None:
    found = compare(np.array([1 / 3]), np.array([2 / 3]), {"rtol": 0.0})
    assert found.sentence("it", "b").startswith("at [0] it has 0.333333 and b 0.666667 (")
    words = compare(np.array(["a"]), np.array(["b"]), {})
    assert words.sentence("it", "b").startswith("at [0] it has 'a' and b 'b' (1 of 1 elements")
    found = compare(np.array([1 + 2j]), np.array([1 + 1j]), {"rtol": 0.0})
    assert (found.worst_actual, found.worst_expected) == ("(1+2j)", "(1+1j)")
    assert found.top1 is None
    assert compare(np.array([[1j, 2j]]), np.array([[1j, 2j]]), OPEN).top1 is None
    assert compare(np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]]), OPEN).top1 == 1.0


@pytest.mark.parametrize(
    ("a", "cosine"),
    [
        (np.zeros((2, 0)), 1.0),
        (np.array(["x", "y"]), None),
        (np.zeros(3), 1.0),
        (np.ones((2, 3)), 1.0),
        (np.array([3, 4]), 1.0),
        (np.array(True), 1.0),
    ],
)
def test_equal_tensors_have_no_error(a: np.ndarray, cosine: float | None) -> None:
    found = compare(a, a.copy(), {"rtol": 0.0})
    assert (found.passed, found.max_abs, found.relative, found.non_finite) == (True, 0.0, 0.0, 0)
    assert found.cosine == (None if cosine is None else pytest.approx(cosine, abs=1e-15))
    assert found.cosine is None or found.cosine <= 1.0
    assert found.worst_index is None


def test_different_integers_keep_their_figures() -> None:
    found = compare(np.array([3, -4, 9]), np.array([3, 4, 8]), OPEN)
    assert (found.max_abs, found.relative, found.worst_index) == (8.0, 1.0, (1,))
    assert found.problem == "2 of 3 elements differ, none may"
    assert found.non_finite == 0
    # in uint8 this difference would be 255
    found = compare(np.array([0, 9], np.uint8), np.array([1, 0], np.uint8), OPEN)
    assert (found.max_abs, found.worst_index) == (9.0, (1,))


def test_the_reference_is_blamed_only_for_its_own_nan() -> None:
    nan, one = np.array([math.nan, 1.0]), np.array([1.0, 1.0])
    assert compare(one, nan, OPEN).problem.endswith("NaN or infinite in the reference itself")
    for a, b in (
        (nan, one),
        (np.array([1.0, math.nan]), nan),
        (np.array([1.0, 1.0]), np.array([math.inf, 1.0])),
    ):
        assert compare(a, b, OPEN).problem.endswith("are NaN or infinite")


@pytest.mark.parametrize(
    ("limits", "passed"),
    [
        ({"rtol": 0.25}, True),
        ({"rtol": 0.2499}, False),
        ({"atol": 1.0}, True),
        ({"atol": 0.9999}, False),
        ({"top1": 0.5}, True),
        ({"top1": 0.5001}, False),
    ],
)
def test_a_limit_may_be_reached(limits: dict[str, float], *, passed: bool) -> None:
    b = np.array([[4.0, 3.5], [1.0, 2.0]])
    a = np.array([[3.0, 3.5], [1.0, 2.0]])
    found = compare(a, b, {"rtol": 1.0, **limits})
    assert (found.top1, found.relative, found.max_abs) == (0.5, 0.25, 1.0)
    assert found.passed is passed


def test_the_cosine_may_reach_its_limit() -> None:
    x, y = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert compare(x, y, {"cosine": 0.0}).passed
    assert compare(-x, x, {"cosine": -1.0}).cosine == -1.0
    assert not compare(x, y, {"cosine": 1e-9}).passed


def test_zeros_have_no_direction() -> None:
    zero, one = np.zeros(2), np.ones(2)
    assert (compare(zero, one, OPEN).cosine, compare(one, zero, OPEN).cosine) == (0.0, 0.0)
    assert compare(one, zero, OPEN).max_abs == 1.0


def test_the_top_of_every_row_counts() -> None:
    b = np.array([[[1.0, 2.0], [8.0, 9.0]], [[5.0, 4.0], [7.0, 6.0]]])
    a = b[..., ::-1].copy()
    assert compare(a, b, OPEN).top1 == 0.0
    a[0, 0] = b[0, 0]
    assert compare(a, b, OPEN).top1 == 0.25
    assert compare(b[..., :1], b[..., :1], OPEN).top1 is None
    assert compare(np.array(1.0), np.array(1.0), OPEN).top1 is None
