"""Parsed graphs of several versions: local functions, refused nodes, layers in fp32."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from trt_double import RecordingTensorRt, planned

from buildsys.backends.interface import GraphRefusedError
from buildsys.backends.tensorrt.build import build_engine
from buildsys.backends.tensorrt.library import GENERATIONS, TRT_8
from buildsys.backends.tensorrt.network_edits import fp32_layers


def with_a_function(folder: Path, opset: int = 17) -> None:
    """Write y = own.Next(x) = x + 2 with weights in another file.

    ``opset`` is that of the graph; the function has 17.
    """
    node, value = helper.make_node, helper.make_tensor_value_info
    opsets = [helper.make_opsetid("", 17)]
    one = helper.make_tensor("one", TensorProto.INT64, [], [1])
    body = [
        node("Constant", [], ["one"], value=one),
        node("Constant", [], ["number"], value_int=1),
        node("Add", ["one", "number"], ["two"]),
        node("CastLike", ["two", "x"], ["own_two"]),
        node("Add", ["x", "own_two"], ["y"]),
    ]
    successor = helper.make_function("own", "Next", ["x"], ["y"], body, opsets)
    ports = [value(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(
        [node("Next", ["x"], ["y"], domain="own")], "g", *[[p] for p in ports]
    )
    model = helper.make_model(
        graph,
        functions=[successor],
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("own", 1)],
    )
    onnx.save(model, folder / "model.onnx")
    (folder / "model.onnx.data").write_bytes(b"weights")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_functions_are_inlined_for_a_parser_without_them(tmp_path: Path, generation: str) -> None:
    made = RecordingTensorRt(generation)
    with_a_function(tmp_path)
    build_engine(made.library, made.request(tmp_path, planned(generation)))
    model = onnx.load_from_string(made.parsed)
    onnx.checker.check_model(model, full_check=True)
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds, len(model.functions)) == (
        (["Constant", "Constant", "Add", "Cast", "Add"], 0)
        if generation == TRT_8
        else (["Next"], 1)
    )
    held = {each.name for node in model.graph.node if "Constant" in node.op_type
            for each in node.attribute}  # fmt: skip
    assert held <= {"value"}  # TensorRT 8.6 reads other integers as 0


def test_all_refused_nodes_of_a_parser_that_names_none(tmp_path: Path) -> None:
    """TensorRT 8.6 reports the first node only, by its index."""
    made, node = RecordingTensorRt(TRT_8), helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"], name="/relu"),
        node("Selu", ["a"], ["b"], name="/selu"),
        node("Odd", ["b"], ["c"], name="/odd", domain="own", plugin_version="2"),
        node("Even", ["c"], ["y"], name="/even", domain="own"),
        node("Selu", ["c"], ["z"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", *[[port] for port in ports]))
    onnx.save(model, tmp_path / "model.onnx")
    made.operators = {"Relu", "Selu"}
    made.creators = [SimpleNamespace(name="Odd", plugin_version="2", plugin_namespace="own")]
    made.refusals = [(1, 'Assertion failed: alpha > 0 && "Selu needs  a positive\nalpha"')]
    with pytest.raises(GraphRefusedError) as caught:
        build_engine(made.library, made.request(tmp_path, planned(TRT_8)))
    unknown = "the parser does not know this operator, and there is no plugin for it"
    assert [(r.index, r.name, r.operator, r.output, r.reason) for r in caught.value.nodes] == [
        (1, "/selu", "Selu", "b", "Selu needs a positive alpha"),
        (3, "/even", "Even", "y", unknown),
    ]


Layer = tuple[str, Sequence[str | None], Sequence[str]]  # name, inputs, outputs


def parsed(*layers: Layer) -> list[Any]:
    """Return layers of a parsed network."""

    def tensor(name: str | None) -> Any:
        return None if name is None else SimpleNamespace(name=name)

    return [
        SimpleNamespace(
            name=name, num_inputs=len(read), num_outputs=len(written),
            get_input=lambda i, read=read: tensor(read[i]),
            get_output=lambda i, written=written: tensor(written[i]),
        )
        for name, read, written in layers
    ]  # fmt: skip


def names(*layers: Layer, nodes: dict[str, tuple[str, ...]]) -> list[str]:
    found = fp32_layers(parsed(*layers), nodes)
    assert all(entry["precision"] == "fp32" for entry in found)
    return [entry["layers"] for entry in found]


def test_layers_have_the_name_or_the_result_of_their_node() -> None:
    layers = (
        ("/a/Conv", ["x"], ["a"]), ("/b/Conv", ["a"], ["b"]), ("node_of_c", ["b"], ["c"]),
        ("/b/Conv_1", ["c"], ["y"]),
    )  # fmt: skip
    assert names(*layers, nodes={"/b/Conv": ("b",)}) == ["/b/Conv"]
    assert names(*layers, nodes={"Mul_c": ("c",)}) == ["node_of_c"]
    assert names(*layers, nodes={"/shape": ("z",)}) == []  # it computes nothing


def test_unnamed_layers_next_to_one_in_fp32_stay_with_it() -> None:
    """A reshape in 16 bits between two layers in fp32 would overflow."""
    layers = (
        ("/a/Conv", ["x"], ["a"]),
        ("(Unnamed Layer* 1) [Shuffle]", ["a"], ["s"]),
        ("(Unnamed Layer* 2) [Shuffle]", ["s"], ["t"]),
        ("/b/Gemm", ["t", None], ["b"]),
        ("(Unnamed Layer* 4) [Shuffle]", ["b"], ["u"]),
        ("/c/Relu", ["u"], ["y"]),
        ("(Unnamed Layer* 6) [Shuffle]", ["y"], ["z"]),
    )
    escaped = [name.replace("*", "[*]").replace(" [", " [[]") for name, _, _ in layers]
    assert names(*layers, nodes={"/b/Gemm": ("b",)}) == escaped[1:5]


def test_prefixes_of_the_parser_are_known() -> None:
    layers = (("reshape_before_/head/Gemm", ["x"], ["r"]), ("/head/Gemm", ["r"], ["y"]))
    assert names(*layers, nodes={"/head/Gemm": ("y",)}) == [name for name, _, _ in layers]


def test_all_nodes_are_one_pattern() -> None:
    assert names(("/a", ["x"], ["y"]), nodes={"*": ()}) == ["*"]
