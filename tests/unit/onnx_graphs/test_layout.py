from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from buildsys.onnx_graphs.inspection.drawing.layout import COLUMN_GAP, Layout, place

Size = tuple[float, float]


def random_graph(seed: int) -> tuple[list[Size], list[tuple[int, int]]]:
    draw = random.Random(seed)
    count = draw.randint(2, 40)
    sizes = [(draw.uniform(30, 200), draw.uniform(20, 90)) for _ in range(count)]
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    return sizes, sorted(draw.sample(pairs, min(len(pairs), 2 * count)))


def frames(layout: Layout, sizes: list[Size]) -> list[tuple[float, float, float, float]]:
    return [(x, y, x + w, y + h) for (x, y), (w, h) in zip(layout.corners, sizes, strict=True)]


@pytest.mark.parametrize("seed", range(12))
def test_boxes_do_not_overlap_and_data_flows_down(seed: int) -> None:
    sizes, edges = random_graph(seed)
    layout = place(sizes, edges)
    boxes = frames(layout, sizes)
    for first, second in combinations(boxes, 2):
        apart = (
            first[2] <= second[0]
            or second[2] <= first[0]
            or first[3] <= second[1]
            or second[3] <= first[1]
        )
        assert apart, (first, second)
    for begin, end in edges:
        assert boxes[begin][3] < boxes[end][1]
    for left, top, right, bottom in boxes:
        assert left >= -0.01 and top >= 0
        assert right <= layout.width + 0.01 and bottom <= layout.height + 0.01


@pytest.mark.parametrize("seed", range(12))
def test_no_edge_runs_through_a_box(seed: int) -> None:
    """Edges are vertical within rows and bend only between rows, without boxes."""
    sizes, edges = random_graph(seed)
    layout = place(sizes, edges)
    boxes = frames(layout, sizes)
    for (begin, end), path in zip(edges, layout.paths, strict=True):
        others = [box for at, box in enumerate(boxes) if at not in (begin, end)]
        for at, ((x, y), (to_x, to_y)) in enumerate(pairwise(path)):
            assert y <= to_y + 0.01
            if at % 2 == 0:
                assert x == to_x
                assert not any(
                    box[0] < x < box[2] and y < box[3] and box[1] < to_y for box in others
                )
            else:
                assert not any(box[1] < to_y - 0.01 and y + 0.01 < box[3] for box in others)


def test_edges_begin_and_end_at_their_boxes() -> None:
    sizes, edges = random_graph(3)
    layout = place(sizes, edges)
    boxes = frames(layout, sizes)
    for (begin, end), path in zip(edges, layout.paths, strict=True):
        left, _, right, bottom = boxes[begin]
        assert left <= path[0][0] <= right and path[0][1] == pytest.approx(bottom, abs=0.02)
        left, top, right, _ = boxes[end]
        assert left <= path[-1][0] <= right and path[-1][1] == pytest.approx(top, abs=0.02)


def test_the_same_graph_is_placed_the_same() -> None:
    assert place(*random_graph(5)) == place(*random_graph(5))


def test_a_chain_is_a_straight_column() -> None:
    layout = place([(50, 20), (90, 20), (30, 20)], [(0, 1), (1, 2)])
    middles = [x + width / 2 for (x, _), width in zip(layout.corners, (50, 90, 30), strict=True)]
    assert middles == [45, 45, 45]


def test_a_late_source_is_directly_above_its_target() -> None:
    layout = place([(10, 10)] * 4, [(0, 1), (1, 2), (3, 2)])
    assert layout.corners[3][1] == layout.corners[1][1]
    assert abs(layout.corners[3][0] - layout.corners[1][0]) >= 10 + COLUMN_GAP


def test_crossings_are_removed() -> None:
    layout = place([(10, 10)] * 4, [(0, 3), (1, 2)])
    (a, b, c, d) = (x for x, _ in layout.corners)
    assert (a < b) == (d < c)


def test_an_empty_graph_has_no_size() -> None:
    assert place([], []) == Layout([], [], 0.0, 0.0)
