"""Layers of a TensorRT engine with the ONNX nodes that became them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from buildsys.cli.console.rows import format_table
from buildsys.report.formatting import count, first_names

_MOST_LAYERS, _MOST_NODES = 16, 3
Layer = Mapping[str, Any]


def layer_lines(layers: Sequence[Layer]) -> list[str]:
    """Format a table of the slowest layers, and what each is made of."""
    ordered = sorted(layers, key=lambda layer: -layer.get("time_ms", 0.0))
    rows = [
        (
            layer["name"], layer["kind"], layer["precision"] or "", *_timing(layer),
            first_names(layer["nodes"], _MOST_NODES) if layer["nodes"] else "",
        )
        for layer in ordered[:_MOST_LAYERS]
    ]  # fmt: skip
    titles = (f"{count(len(layers))} layers", "kind", "type", "time>", "share>", "made of")
    more = len(ordered) - len(rows)
    return [*format_table(titles, rows), *[f"{more} more layers (--json lists all)"] * (more > 0)]


def nodes_with_layers(
    nodes: Sequence[Mapping[str, Any]], layers: Sequence[Layer]
) -> list[dict[str, Any]]:
    """List the nodes of a graph, each with its layers.

    Folded nodes have none, and TensorRT does not name the nodes of a part that it compiles whole.
    """
    layers_of: dict[str, list[Layer]] = {}
    for layer in layers:
        for name in layer["nodes"]:
            layers_of.setdefault(name, []).append(layer)
    rows = []
    for node in nodes:
        if not node["inside"]:  # not in the body of a loop, a condition or a function
            # the parser names nodes without a name by their output
            names = [node["name"], *(f"node_of_{output}" for output in node["outputs"])]
            own = next((layers_of[name] for name in names if name in layers_of), [])
            title = {"name": node["name"] or node["label"], "operator": node["operator"]}
            rows.append({**title, "layers": own})
    return rows


def node_lines(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format a table with one line per node and layer, in graph order."""
    rows = list(_node_rows(nodes))
    return format_table(("operator", "node", "layer", "type", "time>", "share>"), rows)


def _node_rows(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for node in nodes:
        title = (node["operator"], node["name"])
        if not node["layers"]:
            yield (*title, "(none)", "", "", "")
        for layer in node["layers"]:
            yield (*title, layer["name"], layer["precision"] or "", *_timing(layer))


def _timing(layer: Layer) -> tuple[str, str]:
    time_ms, share = layer.get("time_ms"), layer.get("share")
    timed = "" if time_ms is None else f"{time_ms:.4f} ms"
    return timed, "" if share is None else f"{100 * share:.1f} %"
