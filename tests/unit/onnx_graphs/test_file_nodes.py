"""Nodes read off an ONNX file's bytes."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from buildsys.onnx_graphs.file_nodes import read_nodes


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([*varint(number << 3 | 2), len(content)]) + content


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80, value >> 7]) if value > 127 else bytes([value])


def test_nodes_and_functions(tmp_path: Path) -> None:
    node = (
        field(1, b"x") + field(2, b"y") + field(3, b"/conv") + field(4, b"Conv") + field(7, b"my")
    )
    graph = field(1, node) + field(2, b"graph") + field(1, field(4, b"Relu"))
    function = field(1, b"Fn") + field(10, b"dom")
    model = bytes([1 << 3, 8]) + field(7, graph) + field(25, function)
    (tmp_path / "m.onnx").write_bytes(model)
    found = read_nodes(tmp_path / "m.onnx")
    assert [(each.name, each.operator, each.domain, each.output) for each in found.nodes] == [
        ("/conv", "Conv", "my", "y"), ("", "Relu", "", ""),
    ]  # fmt: skip
    assert set(found.functions) == {("dom", "Fn")}


def test_attributes_and_the_nodes_of_subgraphs_and_functions(tmp_path: Path) -> None:
    def plugin(version: str) -> onnx.NodeProto:
        return helper.make_node("Nms", ["x"], ["y"], domain="d", plugin_version=version, limit=2)

    branches = [helper.make_graph([plugin(version)], "b", [], []) for version in "23"]
    branch = helper.make_node("If", ["x"], ["y"], then_branch=branches[0], else_branch=branches[1])
    graph = helper.make_graph([plugin("1"), branch], "g", [], [])
    function = helper.make_function("d", "Fn", ["x"], ["y"], [plugin("4")], [])
    onnx.save(helper.make_model(graph, functions=[function]), tmp_path / "m.onnx")
    found = read_nodes(tmp_path / "m.onnx")
    assert [each.operator for each in found.nodes] == ["Nms", "If"]
    plugins = [dict(each.attributes) for each in found.all() if each.operator == "Nms"]
    plugins.sort(key=lambda attributes: attributes["plugin_version"])
    assert plugins == [{"limit": "", "plugin_version": version} for version in "1234"]


def test_an_invalid_file_has_no_nodes(tmp_path: Path) -> None:
    for content in (b"", b"import this\n", b"\x3a\x7fshort", b"\xff" * 20, b"\x0f"):
        (tmp_path / "m.onnx").write_bytes(content)
        assert read_nodes(tmp_path / "m.onnx").nodes == ()
