"""Tables of engine layers and of the ONNX nodes in them."""

from __future__ import annotations

from typing import Any

from buildsys.cli.engine_layers import layer_lines, node_lines, nodes_with_layers

CONV = {
    "name": "/conv + /relu", "kind": "CaskConvolution", "precision": "float16", "time_ms": 0.75,
    "share": 0.75, "nodes": ["/conv", "/relu"],
}  # fmt: skip
COPY: dict[str, Any] = {"name": "copy", "kind": "Reformat", "precision": None, "nodes": []}
GEMM = {**CONV, "name": "fc", "kind": "gemm", "time_ms": 0.25, "share": 0.25,
        "nodes": ["node_of_y"]}  # fmt: skip


def node(name: str, operator: str, *outputs: str, inside: str = "") -> dict[str, Any]:
    return {
        "name": name, "label": name or outputs[0], "operator": operator, "outputs": outputs,
        "inside": inside,
    }  # fmt: skip


NODES = [
    node("/shape", "Shape", "s"), node("/conv", "Conv", "c"), node("/relu", "Relu", "r"),
    node("", "Gemm", "y"), node("/inner", "Add", "i", inside="loop"),
]  # fmt: skip


def test_the_slowest_layers_come_first() -> None:
    assert layer_lines([COPY, GEMM, CONV]) == [
        "3 layers       kind             type          time   share  made of",
        "/conv + /relu  CaskConvolution  float16  0.7500 ms  75.0 %  /conv, /relu",
        "fc             gemm             float16  0.2500 ms  25.0 %  node_of_y",
        "copy           Reformat",
    ]
    assert layer_lines([CONV] * 99)[-1].endswith(" more layers (--json lists all)")


def test_nodes_have_their_layer_in_graph_order() -> None:
    assert node_lines(nodes_with_layers(NODES, [COPY, CONV, GEMM])) == [
        "operator  node    layer          type          time   share",
        "Shape     /shape  (none)",
        "Conv      /conv   /conv + /relu  float16  0.7500 ms  75.0 %",
        "Relu      /relu   /conv + /relu  float16  0.7500 ms  75.0 %",
        "Gemm      y       fc             float16  0.2500 ms  25.0 %",
    ]
