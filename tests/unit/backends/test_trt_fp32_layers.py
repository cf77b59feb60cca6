"""Layers of the nodes that a search keeps in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from buildsys.backends.tensorrt.network_edits import fp32_layers

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
