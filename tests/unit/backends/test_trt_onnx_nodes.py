"""Nodes read off an ONNX file's bytes."""

from __future__ import annotations

from pathlib import Path

from buildsys.backends.tensorrt.parse import read_nodes


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
    assert found.functions == {("dom", "Fn")}


def test_an_invalid_file_has_no_nodes(tmp_path: Path) -> None:
    for content in (b"", b"import this\n", b"\x3a\x7fshort", b"\xff" * 20, b"\x0f"):
        (tmp_path / "m.onnx").write_bytes(content)
        assert read_nodes(tmp_path / "m.onnx").nodes == ()
