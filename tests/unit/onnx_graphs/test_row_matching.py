"""Matching of rows, one to one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buildsys.onnx_graphs import detections
from buildsys.onnx_graphs.detections import close_rows, match_rows
from buildsys.onnx_graphs.tensors import Array


def rows(*candidates: list[int]) -> list[Array]:
    return [np.array(row, dtype=int) for row in candidates]


@given(st.lists(st.sets(st.integers(0, 6)), max_size=7))
@settings(max_examples=60, deadline=None)
def test_as_many_rows_as_possible_are_matched(candidates: list[set[int]]) -> None:
    matched = match_rows(rows(*map(sorted, candidates)))
    taken = [int(c) for c in matched if c >= 0]
    assert len(set(taken)) == len(taken)
    assert all(int(c) in candidates[row] for row, c in enumerate(matched) if c >= 0)

    def most(row: int, free: frozenset[int]) -> int:
        if row == len(candidates):
            return 0
        chosen = [1 + most(row + 1, free - {c}) for c in candidates[row] & free]
        return max([most(row + 1, free), *chosen])

    assert len(taken) == most(0, frozenset(range(7)))


def test_earlier_rows_move_along_a_path() -> None:
    # the last row takes 0, so the rows before it shift by one
    assert match_rows(rows([0, 1], [1, 2], [2, 3], [0])).tolist() == [1, 2, 3, 0]
    assert match_rows(rows([0], [0], [0, 1])).tolist() == [0, -1, 1]


def test_rows_stay_in_place_or_go_to_the_nearest() -> None:
    assert match_rows(rows([0, 2], [0, 1, 2], [0, 2])).tolist() == [0, 1, 2]
    assert match_rows(rows([], [], [], [0, 5, 9])).tolist() == [-1, -1, -1, 5]


def test_thousands_of_equal_rows_are_matched_in_place() -> None:
    every = np.arange(3000)
    assert (match_rows([every] * 3000) == every).all()


@pytest.mark.parametrize("block", [1, 20, 1 << 22])
def test_close_rows_are_within_all_limits(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detections, "_BLOCK", block)
    x = np.array([[0.0, 0.0], [1.0, 10.0], [2.0, 0.0]])
    y = np.array([[0.5, 0.0], [1.0, 0.0], [2.0, 5.0], [1.5, 5.0], [0.0, 9.0]])
    found = close_rows(x, y, np.array([1.0, 5.0]))
    assert [row.tolist() for row in found] == [[0], [0, 2], [1, 2], [1, 2], [1]]


def test_no_rows_are_close_to_none() -> None:
    none, one = np.zeros((0, 2)), np.zeros((1, 2))
    assert [row.tolist() for row in close_rows(none, one, np.ones(2))] == [[]]
    assert close_rows(one, none, np.ones(2)) == []
