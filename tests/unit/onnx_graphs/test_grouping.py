from __future__ import annotations

from itertools import pairwise

from plain_graphs import body, chain, node, residual_blocks

from buildsys.onnx_graphs.inspection.drawing.grouping import (
    PLAIN_LIMIT,
    Box,
    Parallel,
    boxes_of,
    group,
    outline,
)
from buildsys.onnx_graphs.inspection.plain_graph import TIMES, Body, PlainNode


def grouped(graph: Body, form: object = None) -> list[Box]:
    edges = [
        (graph.producers[name], taker)
        for taker in graph.nodes
        for name in taker.reads
        if name in graph.producers
    ]
    form_of = form if callable(form) else (lambda node: "")
    return [
        box for column in group(graph.nodes, dict.fromkeys(edges), form=form_of) for box in column
    ]


def texts(boxes: list[Box]) -> list[tuple[str, int]]:
    return [(outline(box.pattern), box.count) for box in boxes]


def nodes_of(boxes: list[Box]) -> list[PlainNode]:
    return [one for box in boxes for one in box.nodes]


def test_few_nodes_are_single_boxes() -> None:
    graph = body(residual_blocks(3), "b0", "b3")
    assert [box.items for box in grouped(graph)] == [(one,) for one in graph.nodes]


def test_repeated_blocks_are_one_box() -> None:
    head = chain("Conv", "Relu", "MaxPool", prefix="h", begin="x", end="b0")
    tail = chain("GlobalAveragePool", "Flatten", "Gemm", prefix="e", begin="b16", end="y")
    boxes = grouped(body([*head, *residual_blocks(16), *tail]))
    assert texts(boxes) == [
        ("Conv → Relu → MaxPool", 1),
        ("(Conv → Relu → Conv ∥ skip) → Add → Relu", 16),
        ("GlobalAveragePool → Flatten → Gemm", 1),
    ]


def test_every_node_is_in_exactly_one_box() -> None:
    graph = body([*residual_blocks(20), node("Sigmoid", "b7", "side")], "b0", "b20 side")
    found = nodes_of(grouped(graph))
    assert len(found) == len(graph.nodes)
    assert set(found) == set(graph.nodes)


def test_blocks_of_different_form_are_separate_repeats() -> None:
    graph = body([node("Neg", "x", "b0"), *residual_blocks(16)], "x", "b16")
    half = set(graph.nodes[:41])
    boxes = grouped(graph, lambda one: "wide" if one in half else "narrow")
    assert [box.count for box in boxes] == [1, 8, 8]


def test_a_skip_around_nearly_everything_is_drawn() -> None:
    inner = chain(*["Conv", "Relu", "MaxPool", "Sigmoid", "Neg"] * 14, begin="a", end="m")
    graph = body([node("Conv", "x", "a"), *inner, node("Concat", "m a", "y")])
    boxes = grouped(graph)
    assert len(boxes) > 2
    assert len(nodes_of(boxes)) == len(graph.nodes) > PLAIN_LIMIT


def test_ends_stay_single_boxes() -> None:
    nodes = [
        PlainNode("x", "input", (), ("x",)),
        *chain(*["Neg"] * 70),
        PlainNode("y", "output", ("y",), ()),
    ]
    edges = list(pairwise(nodes))
    columns = group(nodes, edges, fixed=(nodes[0], nodes[-1]))
    assert [column[0].items for column in (columns[0], columns[-1])] == [(nodes[0],), (nodes[-1],)]
    assert [box.count for box in columns[1]] == [70]


def test_a_long_run_is_cut() -> None:
    operators = ["Conv", "Relu", "Add", "Mul", "Div", "Exp", "Log", "Neg", "Abs", "Sin", "Cos"]
    boxes = boxes_of(chain(*operators))
    assert [len(box.items) for box in boxes] == [8, 3]


def test_outlines() -> None:
    assert outline(chain("Conv", "Relu", "Relu", "Neg")) == f"Conv → Relu {TIMES}2 → Neg"
    skip = Parallel((tuple(chain("Conv", "Relu")),), skip=True)
    assert outline((skip, *chain("Add"))) == "(Conv → Relu ∥ skip) → Add"
    assert outline(chain(*["Conv", "Reshape"] * 30)) == f"Conv {TIMES}30, Reshape {TIMES}30"
