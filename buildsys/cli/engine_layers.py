"""Layers of a TensorRT engine with the ONNX nodes that became them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from buildsys.cli.console.rows import format_table
from buildsys.report.formatting import count, first_names

_SHOWN_LAYERS = 12
_SHOWN_NODES = 3
Layer = Mapping[str, Any]


def layer_lines(layers: Sequence[Layer], *, of_graph: bool = True) -> list[str]:
    """Format a table of the slowest layers that fit on a screen.

    They are made of nodes of an ONNX graph, or of the layers of a network defined by hand.
    """
    room = max(_SHOWN_LAYERS, shutil.get_terminal_size((80, 40)).lines - 24)
    ordered = sorted(layers, key=lambda layer: -layer.get("time_ms", 0.0))
    printed = ordered if len(ordered) <= room + 1 else ordered[:room]
    rows = [
        (
            layer["name"], layer["kind"], layer["precision"] or "", *_timing(layer),
            first_names(layer["nodes"], _SHOWN_NODES) if layer["nodes"] else "",
        )
        for layer in printed
    ]  # fmt: skip
    titles = (
        f"{count(len(layers))} layers",
        "kind",
        "type",
        "time>",
        "share>",
        "ONNX nodes" if of_graph else "layers of the network",
    )
    more = [f"{len(ordered) - len(printed)} more layers (--json lists all)"]
    return [*format_table(titles, rows), *(more if len(printed) < len(ordered) else [])]


def nodes_with_layers(
    nodes: Sequence[Mapping[str, Any]], layers: Sequence[Layer]
) -> list[dict[str, Any]]:
    """List the nodes of a graph, each with its layers; [] of folded nodes.

    TensorRT does not name the nodes in a part that it compiles as a whole. If there is one such
    part, the nodes that no layer names are folded or in it.
    """
    layers_of: dict[str, list[Layer]] = {}
    for layer in layers:
        for name in layer["nodes"]:
            layers_of.setdefault(name, []).append(layer)
    opaque = [entry for entry in layers if "ForeignNode[" in entry["name"] and not entry["nodes"]]
    rows = []
    for node in nodes:
        if node["inside"]:
            continue  # the body of a loop, a condition or a function
        # the parser names nodes without a name by their output
        names = [node["name"], *(f"node_of_{output}" for output in node["outputs"])]
        own = next((layers_of[name] for name in names if name in layers_of), [])
        rows.append({
            "name": node["name"] or node["label"], "operator": node["operator"], "layers": own,
            "compiled_whole": bool(not own and len(opaque) == 1),
        })  # fmt: skip
    return rows


def node_lines(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format a table with one line per node and layer, in graph order."""
    rows = list(_node_rows(nodes))
    return format_table(("operator", "node", "layer", "type", "time>", "share>"), rows)


def _node_rows(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for node in nodes:
        what = (node["operator"], node["name"])
        if not node["layers"]:
            where = "(compiled as a whole)" if node["compiled_whole"] else "(folded)"
            yield (*what, where, "", "", "")
        for layer in node["layers"]:
            yield (*what, layer["name"], layer["precision"] or "", *_timing(layer))


def _timing(layer: Layer) -> tuple[str, str]:
    time_ms, share = layer.get("time_ms"), layer.get("share")
    timed = "" if time_ms is None else f"{time_ms:.4f} ms"
    return timed, "" if share is None else f"{100 * share:.1f} %"
