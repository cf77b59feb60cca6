"""Multiply-accumulates and bytes of graphs and of their parts."""

import onnx
import pytest
from plain_graphs import body, node

from buildsys.onnx_graphs.inspection.graph import Body, PlainNode, StoredTensor, Value
from buildsys.onnx_graphs.inspection.work import UNKNOWN_SIZES, GraphWork, Work, work_of

NODES = [
    node("MatMul", "x w", "a", "product"),
    node("Relu", "a", "b", "relu"),
    node("MatMul", "b w", "y", "again"),
]


def layers(*nodes: PlainNode, **weights: str) -> Body:
    """Return a graph of 4 x 4 tensors; ``weights`` have types."""
    names = {name for one in nodes for name in one.outputs}
    shapes = {name: [4, 4] for name in ("x", *names)}
    made = body(nodes, values=shapes)
    stored = {n: StoredTensor(dtype, (4, 4), n, 0) for n, dtype in weights.items()}
    return Body(made.inputs, made.outputs, made.nodes, stored, made.values)


@pytest.mark.parametrize(("bits", "weight_bytes"), [(None, 64), (16, 32), (8, 16)])
def test_a_graph_moves_its_inputs_outputs_and_each_weight_once(
    bits: int | None, weight_bytes: int
) -> None:
    graph = GraphWork(layers(*NODES, w="float32"))
    assert graph.whole(bits) == Work(2 * 64, 64 + weight_bytes + 64, {})


def test_packed_weights_have_less_than_a_byte_each() -> None:
    graph = GraphWork(layers(node("DequantizeLinear", "w s", "a"), s="float32", w="int4"))
    assert graph.whole(None).bytes == 8 + 64


def test_a_part_moves_what_others_make_and_use() -> None:
    graph = GraphWork(layers(*NODES, w="float32"))
    assert graph.part(["product", "relu"], None) == Work(64, 3 * 64, {})
    assert graph.part(["relu"], 16) == Work(0, 2 * 32, {})
    assert graph.part(["fused away"], None) is None


def test_a_table_counts_as_far_as_it_is_read() -> None:
    gather = node("Gather", "table i", "y")
    values = {"y": Value("float32", (2, 8)), "i": Value("int64", (2,))}
    table = StoredTensor("float32", (30_000, 8), "table", 0)
    graph = GraphWork(Body(("i",), ("y",), (gather,), {"table": table}, values))
    assert graph.whole(None) == Work(0, 64 + 16 + 64, {})


def test_what_cannot_be_counted_is_named() -> None:
    graph = GraphWork(layers(*NODES[:2], node("acme::Op", "b", "y", "own"), w="float32"))
    assert graph.whole(None) == Work(64, 3 * 64, {"acme::Op": 1})
    assert graph.part(["own"], None) is None
    unsized = body([node("Relu", "x", "y", "relu")], values={"x": [2], "y": [None]})
    assert set(GraphWork(unsized).whole(None).left_out) == {UNKNOWN_SIZES}


MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[batch, 4] x, bool c) => (float[batch, 4] y)
<float[4, 4] w = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}> {
    y = If (c) <
        then_branch = t () => (float[batch, 4] p) { p = MatMul (x, w) },
        else_branch = e () => (float[batch, 4] q) { q = Relu (x) }
    >
}
"""


def test_bodies_are_part_of_a_graph_at_the_sizes_of_its_dimensions() -> None:
    work = work_of(onnx.parser.parse_model(MODEL), {"batch": 3}).whole(None)
    assert work == Work(48, 48 + 1 + 64 + 48, {})
