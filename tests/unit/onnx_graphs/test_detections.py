"""Matching of detections, limit by limit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buildsys.onnx_graphs import detections
from buildsys.onnx_graphs.detections import Matches, close_rows, match_detections, match_rows
from buildsys.onnx_graphs.tensors import Array, tensor_of

POLICY: dict[str, Any] = {
    "labels": None,
    "scores": None,
    "score_column": 4,
    "label_column": 5,
    "format": "xyxy",
    "iou": 0.5,
    "score": 0.125,
    "min_score": 0.0,
}
Box = Sequence[float]


def match(
    actual: Any, expected: Any, rtol: float = 0.0, boxes: str = "boxes", **policy: Any
) -> Matches:
    sides = ({boxes: tensor_of(np.array(side, np.float32))} for side in (actual, expected))
    return match_detections(boxes, {**POLICY, **policy}, *sides, rtol)


def one(*box: float, score: float = 1.0, label: int = 0) -> list[float]:
    return [*(box or (0, 0, 4, 4)), score, label]


def row(position: int, score: float = 1.0, label: int = 0) -> list[float]:
    return [10 * position, 0, 10 * position + 4, 4, score, label]


def matches(actual: list[float], expected: list[float], **policy: Any) -> bool:
    return match([actual], [expected], **policy).actual.size == 1


NONE = np.zeros((0, 6))


@pytest.mark.parametrize(
    ("box", "iou"),
    [
        ((0, 0, 4, 4), 1.0),
        ((0, 0, 4, 2), 0.5),
        ((2, 0, 6, 4), 1 / 3),
        ((0, 3, 4, 7), 1 / 7),
        ((1, 1, 3, 3), 0.25),
        ((4, 0, 8, 4), 0.0),
        ((8, 8, 9, 9), 0.0),
        ((8, 0, 9, 9), 0.0),
        ((4, 4, 0, 0), 0.0),
        ((2, 2, 2, 2), 0.0),
    ],
)
def test_boxes_match_from_the_least_overlap_on(box: Box, iou: float) -> None:
    for pair in ((one(*box), one()), (one(), one(*box))):
        assert matches(*pair, iou=iou - 1e-9)
        assert not matches(*pair, iou=iou + 1e-9)


def test_boxes_may_be_relative_to_the_image() -> None:
    assert matches(one(0, 0, 0.5, 0.5), one(0, 0, 0.5, 0.25), iou=0.5)
    assert not matches(one(0, 0, 0.5, 0.5), one(0, 0, 0.5, 0.25), iou=0.51)


def test_boxes_without_area_match_only_equal_ones() -> None:
    assert matches(one(3, 3, 3, 3), one(3, 3, 3, 3), iou=1.0)
    assert match([one(), one(3, 3, 3, 3)], [one(), one(3, 3, 3, 3)]).actual.tolist() == [0, 1]
    assert not matches(one(3, 3, 3, 4), one(3, 3, 3, 3))


@pytest.mark.parametrize("box", [(0, 3, 64, 3.0001), (64, 30, 64, 53), (3, 3, 3, 3)])
def test_boxes_without_area_match_within_the_limit_of_numbers(box: Box) -> None:
    """Rounding moves a clipped box by more than its width, so it has no overlap with itself."""
    far = one(1e6, 0, 1.1e6, 4)

    def matched(side: Box, rtol: float) -> list[int]:
        found = match([one(*side), far], [one(*box), far], rtol=rtol, iou=0.99)
        return [int(row) for row in found.actual]

    moved = np.add(box, 0.0002)
    assert matched(moved, 1e-4) == matched([*box[:3], moved[3]], 1e-4) == [0, 1]
    assert matched(moved, 1e-6) == matched(np.add(box, [0, 0, 0, 0.5]), 1e-4) == [1]


@pytest.mark.parametrize(("form", "box"), [("xywh", (2, 4, 8, 4)), ("cxcywh", (6, 6, 8, 4))])
def test_sizes_are_made_corners(form: str, box: Box) -> None:
    found = match([one(*box)], NONE, format=form)
    assert "box [2, 4, 10, 8]" in found.problems[0]


def test_scores_and_labels_must_fit() -> None:
    assert matches(one(score=0.875), one())
    assert matches(one(), one(score=0.875))
    assert not matches(one(score=0.874), one())
    assert not matches(one(label=1), one())
    assert matches(one(label=1), one(), label_column=None)
    assert matches(one(score=0.5), one(), score_column=None)


def test_the_default_limit_of_scores_follows_the_largest_reference() -> None:
    def images(first: float, second: float) -> list[list[list[float]]]:
        return [[one(score=first)], [one(score=second)]]

    y = images(0.5, 0.25)
    for rtol, score, count in ((0.25, 0.375, 2), (0.25, 0.374, 1), (0.0, 0.5, 2)):
        assert match(images(score, 0.25), y, rtol, score=None).actual.size == count
    # the second image has the limit of the first
    assert match(images(0.5, 0.125), y, 0.25, score=None).actual.tolist() == [0, 1]


def test_companions_have_scores_and_labels() -> None:
    sides = [
        {
            "boxes": tensor_of(np.array([[row(i)[:4] for i in range(3)]], np.float32)[:, order]),
            "scores": tensor_of(np.array([[0.5, 0.75, 1.0]], np.float32)[:, order]),
            "labels": tensor_of(np.array([[7, 8, 9]])[:, order]),
        }
        for order in ([2, 0, 1], [0, 1, 2])
    ]
    policy = {**POLICY, "scores": "scores", "labels": "labels"}
    found = match_detections("boxes", policy, *sides, 0.0)
    assert (found.actual.tolist(), found.expected.tolist()) == ([1, 2, 0], [0, 1, 2])
    assert found.problems == ()


def test_rows_count_through_all_images() -> None:
    y = [[row(0), row(1)], [row(2), row(3)], [row(4, score=0.25), row(5)]]
    x = [[row(1), row(0)], [row(2), row(3)], [row(4, score=0.25), row(5)]]
    found = match(x, y, min_score=0.5)
    assert found.actual.tolist() == [1, 0, 2, 3, 5]
    assert found.expected.tolist() == [0, 1, 2, 3, 5]


def test_no_images_and_no_detections_match() -> None:
    for shape in ((0, 3, 6), (2, 0, 6), (0, 6)):
        found = match(np.zeros(shape), np.zeros(shape), score=None)
        assert (found.actual.size, found.expected.size, found.problems) == (0, 0, ())
        assert found.actual.dtype.kind == "i"


def test_the_end_of_a_list_may_be_cut_off() -> None:
    y = [row(0), row(1, 0.75), row(2, 0.875)]
    assert match(y[:2], y).problems == ()  # 0.875 is within 0.125 of the lowest score
    assert match(y, y[:2]).problems == ()
    assert match(y[:2], y, score=0.124).problems
    assert match(y, y[:2], score=0.124).problems
    # another one at the end of the reference, and one that the reference must have
    found = match([row(0), row(2, 0.75)], [row(0), row(1, 0.5)])
    assert [problem[:36] for problem in found.problems] == ["1 of 2 detections of the output have"]


def test_a_tenth_of_a_list_may_be_cut_off() -> None:
    y = [row(position) for position in range(20)]
    assert match(y[:18], y).problems == ()
    assert match(y[:17], y).problems[0].startswith("3 of 20 detections of the reference")
    assert match(y, y[:17]).problems[0].startswith("3 of 20 detections of the output")
    assert match(y[:3], y[:5]).problems
    assert match(y[:15], y[:14]).problems == ()
    assert match(y[:14], y[:15]).problems == ()


def test_scores_near_the_least_score_may_be_on_one_side_only() -> None:
    edge = [row(0), row(1, 0.375)]
    assert match(edge, [row(0), row(1, 0.25)], min_score=0.3).problems == ()
    assert match(edge[1:], NONE, min_score=0.3).problems == ()
    assert match(NONE, edge[1:], min_score=0.3).problems == ()
    assert match(NONE, edge[1:], min_score=0.2).problems
    assert match(NONE, [row(0, 0.125)]).problems == ()
    assert match(NONE, [row(0, 0.126)]).problems


def test_a_single_detection_is_not_cut_off() -> None:
    assert len(match([row(0)], [row(1)]).problems) == 2
    assert len(match([row(0), row(1)], [row(2), row(3)]).problems) == 2
    assert match([row(0), row(1)], [row(0), row(2)]).problems == ()


def test_the_first_detection_without_counterpart_is_described() -> None:
    y = [row(0), row(1, 0.75, 3), row(4, 0.5, 2)]
    x = [row(0), [10, 0, 14, 3, 0.75, 2], row(4, 0.5)]
    assert match(x, y, score=0.0).problems == (
        "2 of 3 detections of the reference have no counterpart: the first has label 3,"
        " score 0.75, box [10, 0, 14, 4]; the best IoU is 0.75",
        "2 of 3 detections of the output have no counterpart: the first has label 2,"
        " score 0.75, box [10, 0, 14, 3]; the best IoU is 0.75",
    )
    found = match([[row(0)], [row(0)]], [[row(0)], [row(1)]])
    assert [problem.partition(":")[0] for problem in found.problems] == [
        "1 of 1 detections of the reference have no counterpart in image 1",
        "1 of 1 detections of the output have no counterpart in image 1",
    ]
    assert "score 0.123" in match([row(0, 0.12345)], NONE, score=0.0).problems[0]
    assert match(NONE, [row(0)]).problems[0].endswith("[0, 0, 4, 4]; the other list is empty")


def test_the_described_detection_is_one_that_was_not_cut_off() -> None:
    y = [row(0), row(1, 0.5), row(2, 0.25), row(3, 0.875)]
    found = match([row(0), row(1, 0.5)], y)
    assert "the first has label 0, score 0.875" in found.problems[0]


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
