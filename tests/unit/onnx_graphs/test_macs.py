from collections.abc import Mapping
from dataclasses import replace

import pytest
from plain_graphs import body, node

from buildsys.onnx_graphs.inspection.describe import count_macs
from buildsys.onnx_graphs.inspection.graph import PlainNode

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
    ("product", "shapes", "expected"), CASES, ids=lambda value: getattr(value, "operator", None)
)
def test_products_are_counted(
    product: PlainNode, shapes: Mapping[str, list[int]], expected: int
) -> None:
    macs = count_macs(body([product], values=shapes))
    assert macs.total == expected
    assert macs.is_complete


def test_unknown_operators_and_shapes_are_reported() -> None:
    nodes = [node("MatMul", "x w", "a"), node("my.domain::Op", "a", "y")]
    macs = count_macs(body(nodes, values={"x": [2, "n"], "a": [2, 4]}))
    assert (macs.total, dict(macs.not_counted)) == (0, {"MatMul": 1, "my.domain::Op": 1})
    assert not macs.is_complete


def test_bodies_count_once() -> None:
    branch = body([node("MatMul", "x w", "t")], "", "t", values={"w": [3, 4], "t": [2, 4]})
    loop = PlainNode("loop", "Loop", ("n",), ("y",), {}, {"body": branch})
    macs = count_macs(body([loop], "n x", values={"x": [2, 3]}))
    assert (macs.total, macs.loops, macs.is_complete) == (24, 1, False)
    macs = count_macs(body([replace(loop, operator="If")], "n x", values={"x": [2, 3]}))
    assert (macs.total, macs.loops, macs.is_complete) == (24, 0, True)
