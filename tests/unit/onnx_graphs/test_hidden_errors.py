"""Errors in small slices of an output, and notes on them."""

from __future__ import annotations

import numpy as np

from buildsys.onnx_graphs.tensor_comparison import Comparison, compare

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
