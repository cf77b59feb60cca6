from __future__ import annotations

from collections.abc import Mapping

import pytest
from plain_graphs import body, node

from buildsys.onnx_graphs.inspection.macs import count_macs, evaluate, formula
from buildsys.onnx_graphs.inspection.plain_graph import Body, PlainNode

CASES = [
    (
        node("Conv", "x w", "y"),
        {"x": [2, 6, 8, 8], "w": [4, 3, 3, 3], "y": [2, 4, 8, 8]},
        2 * 4 * 64 * 27,
    ),
    (
        node("ConvTranspose", "x w", "y"),
        {"x": [1, 4, 5, 5], "w": [4, 2, 3, 3], "y": [1, 2, 7, 7]},
        100 * 18,
    ),
    (node("Gemm", "x w", "y", transA="1"), {"x": [7, 3], "w": [7, 5], "y": [3, 5]}, 105),
    (node("MatMul", "x w", "y"), {"x": [2, 3, 7], "w": [7, 5], "y": [2, 3, 5]}, 2 * 3 * 7 * 5),
    (node("MatMul", "x w", "y"), {"x": [7], "w": [7], "y": []}, 7),
    (
        node("Einsum", "x w", "y", equation="bij,bjk->bik"),
        {"x": [2, 3, 4], "w": [2, 4, 5], "y": [2, 3, 5]},
        120,
    ),
    (
        node("LSTM", "x w r", "y"),
        {"x": [6, 2, 3], "w": [1, 16, 3], "r": [1, 16, 4], "y": [6, 1, 2, 4]},
        12 * 112,
    ),
    (node("com.microsoft::FusedConv", "x w", "y"), {"w": [4, 3, 1, 1], "y": [1, 4, 2, 2]}, 48),
    (node("Relu", "x", "y"), {"x": [2, 3], "y": [2, 3]}, 0),
]


@pytest.mark.parametrize(
    ("one", "shapes", "expected"), CASES, ids=lambda value: getattr(value, "operator", None)
)
def test_products_are_counted(
    one: PlainNode, shapes: Mapping[str, list[int]], expected: int
) -> None:
    found = count_macs(body([one], values=shapes))
    assert found.total == expected
    assert found.is_complete


def test_unknown_operators_and_shapes_are_reported() -> None:
    nodes = [node("MatMul", "x w", "a"), node("my.domain::Op", "a", "y")]
    found = count_macs(body(nodes, values={"x": [2, "n"], "a": [2, 4]}))
    assert (found.total, dict(found.unknown), dict(found.opaque)) == (
        0,
        {"MatMul": 1},
        {"my.domain::Op": 1},
    )
    assert not found.is_complete


def test_an_if_counts_its_more_expensive_branch_and_a_loop_one_iteration() -> None:
    def branch(width: int) -> Body:
        return body(
            [node("MatMul", "x w", "t")], "", "t", values={"w": [3, width], "t": [2, width]}
        )

    nodes = [
        PlainNode(
            "if", "If", ("c",), ("a",), {}, {"then_branch": branch(4), "else_branch": branch(9)}
        )
    ]
    assert count_macs(body(nodes, "c x", values={"x": [2, 3]})).total == 2 * 3 * 9
    loop = PlainNode("loop", "Loop", ("n",), ("y",), {}, {"body": branch(4)})
    found = count_macs(body([loop], "n x", values={"x": [2, 3]}))
    assert (found.total, found.loops, found.is_complete) == (24, 1, False)


def test_a_formula_is_found_in_one_and_two_dimensions() -> None:
    assert formula(lambda dims: 7 * dims["batch"], {"batch": 4}) == {"batch": 7}
    assert formula(lambda dims: 5, {}) == {"": 5}
    attention = formula(
        lambda dims: 3 * dims["b"] * dims["s"] ** 2 + 8 * dims["b"] + 1, {"b": 2, "s": 16}
    )
    assert attention == {"": 1, "b": 8, "b*s^2": 3}
    assert evaluate(attention, {"b": 3, "s": 10}) == 925
    assert evaluate(attention, {"b": 3}) is None


@pytest.mark.parametrize(
    "count", [lambda dims: dims["n"] ** 3, lambda dims: dims["n"] // 3, lambda dims: None]
)
def test_without_a_fitting_polynomial_there_is_no_formula(count: object) -> None:
    assert callable(count)
    assert formula(count, {"n": 4}) is None
    assert formula(lambda dims: 1, {"a": 2, "b": 2, "c": 2}) is None
