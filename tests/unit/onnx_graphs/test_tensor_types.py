"""Tensors captured by the bodies of a node."""

from onnx import GraphProto, NodeProto, TensorProto, helper

from buildsys.onnx_graphs.tensor_types import outer_names, rename_outer


def body(nodes: list[NodeProto], output: str) -> GraphProto:
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n"])
    return helper.make_graph(nodes, "body", [], [value])


def test_captured_tensors_are_renamed_at_every_depth() -> None:
    returned = body([], "captured")
    inner = helper.make_node("If", ["flag"], ["n"], then_branch=returned, else_branch=returned)
    relu = helper.make_node("Relu", ["captured"], ["own"])
    outer = helper.make_node(
        "If", ["top"], ["y"], then_branch=body([inner], "n"), else_branch=body([relu], "own")
    )
    assert outer_names(outer) == {"flag", "captured"}
    rename_outer(outer, {"captured": "renamed", "top": "unused"})
    assert outer_names(outer) == {"flag", "renamed"}
    assert outer.input == ["top"]
    assert {attribute.g.output[0].name for attribute in outer.attribute} == {"n", "own"}


def test_a_branch_that_returns_a_captured_tensor_follows_its_name() -> None:
    branch = body([], "captured")
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)
    rename_outer(node, {"captured": "renamed"})
    assert [attribute.g.output[0].name for attribute in node.attribute] == ["renamed", "renamed"]
