"""What differs between two graphs: nodes gone, come and changed, tensors, initializers, opsets and the interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from buildsys.onnx_graphs.inspection.changed_nodes import node_changes
from buildsys.onnx_graphs.inspection.node_matching import Matching, regions
from buildsys.onnx_graphs.inspection.plain_graph import (
    Body,
    Network,
    Node,
    Stored,
    Value,
    operator_histogram,
)
from buildsys.onnx_graphs.inspection.removed_nodes import fate_of, origin_of


def compare(first: Network, second: Network) -> dict[str, Any]:
    """Return all differences as JSON values; ``is_equal`` tells whether there are any."""
    histograms = operator_histogram(first), operator_histogram(second)
    bodies = compare_bodies(first.body, second.body)
    functions = [
        {one.name: _function_text(one.nodes) for one in network.functions}
        for network in (first, second)
    ]
    header = {
        "ir_version": (first.ir_version, second.ir_version),
        "producer": (first.producer, second.producer),
    }
    found = {
        "header": {name: list(pair) for name, pair in header.items() if pair[0] != pair[1]},
        "opsets": _mapping_changes(first.opsets, second.opsets),
        "functions": _mapping_changes(functions[0], functions[1]),
        "interface": {
            side: _ports(first.body, second.body, side) for side in ("inputs", "outputs")
        },
        "operators": _mapping_changes(histograms[0], histograms[1], absent=0),
        **bodies,
    }
    nodes = [sum(histogram.values()) for histogram in histograms]
    return {
        "nodes": nodes,
        "is_equal": not any(_is_filled(value) for value in found.values()),
        **found,
    }


def compare_bodies(first: Body, second: Body) -> dict[str, Any]:
    """Return gone, come and changed nodes, shapes and initializers."""
    matching = Matching(first, second)
    changes = {change.node: change for change in node_changes(matching, _difference)}
    gone = [fate_of(nodes, matching, changes) for nodes in regions(matching.gone, first)]
    come = [origin_of(nodes, matching, gone) for nodes in regions(matching.come, second)]
    return {
        "gone": [group.as_json() for group in gone],
        "come": [group.as_json() for group in come],
        "changed": [change.as_json() for change in changes.values()],
        "renamed": [{"from": node.label, "to": other.label, "operator": node.operator}
                    for node, other in matching.nodes.items() if node.label != other.label],
        "shapes": list(_shape_changes(matching)),
        "initializers": initializer_changes(first.initializers, second.initializers),
    }  # fmt: skip


def _difference(first: Body, second: Body) -> dict[str, Any]:
    """Return what differs between two bodies, {} where nothing does."""
    found = compare_bodies(first, second)
    return found if _is_filled(found) else {}


def _shape_changes(matching: Matching) -> Iterator[dict[str, Any]]:
    for name, other in matching.tensors.items():
        was, now = matching.first.value(name), matching.second.value(other)
        if was is not None and now is not None and _is_known(was) and _is_known(now) and was != now:
            yield {"tensor": other, "was_called": name, "from": str(was), "to": str(now)}


def _is_known(value: Value) -> bool:
    return value.shape is not None and None not in value.shape


def initializer_changes(
    first: Mapping[str, Stored], second: Mapping[str, Stored]
) -> dict[str, Any]:
    """Return initializers gone, come, with other contents, and under another name."""
    gone = {name: stored for name, stored in first.items() if name not in second}
    come = {name: stored for name, stored in second.items() if name not in first}
    by_content: dict[str, list[str]] = {}
    for name, stored in come.items():
        by_content.setdefault(stored.digest, []).append(name)
    renamed = []
    for name, stored in list(gone.items()):
        if stored.digest and by_content.get(stored.digest):
            other = by_content[stored.digest].pop(0)
            renamed.append({"from": name, "to": other})
            del gone[name], come[other]
    changed = [
        {"name": name, "from": _stored_text(stored), "to": _stored_text(second[name])}
        for name, stored in first.items()
        if name in second and stored.digest != second[name].digest
    ]
    return {
        "gone": [_stored_json(stored) for stored in gone.values()],
        "come": [_stored_json(stored) for stored in come.values()],
        "changed": changed,
        "renamed": renamed,
        "count": [len(first), len(second)],
        "bytes": [sum(one.bytes for one in side.values()) for side in (first, second)],
    }  # fmt: skip


def _stored_json(stored: Stored) -> dict[str, Any]:
    return {
        "name": stored.name,
        "dtype": stored.dtype,
        "shape": list(stored.shape),
        "bytes": stored.bytes,
    }


def _stored_text(stored: Stored) -> str:
    return f"{stored.dtype} {list(stored.shape)}"


def _ports(first: Body, second: Body, side: str) -> list[dict[str, Any]]:
    found = []
    names: tuple[tuple[str, ...], tuple[str, ...]] = getattr(first, side), getattr(second, side)
    for name in dict.fromkeys((*names[0], *names[1])):
        was = str(first.value(name)) if name in names[0] else None
        now = str(second.value(name)) if name in names[1] else None
        if was != now:
            found.append({"name": name, "from": was, "to": now})
    return found


def _mapping_changes(
    first: Mapping[str, Any], second: Mapping[str, Any], absent: int | None = None
) -> dict[str, list[Any]]:
    pairs = {
        name: [first.get(name, absent), second.get(name, absent)] for name in (*first, *second)
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _function_text(nodes: Sequence[Node]) -> str:
    listed = (
        f"{node.operator}({', '.join(node.inputs)})→{', '.join(node.outputs)}{dict(node.attributes)}"
        for node in nodes
    )
    return "; ".join(listed)


def _is_filled(value: Any) -> bool:
    """Tell whether there is any difference in a part of the answer: counts and sizes are none."""
    if isinstance(value, Mapping):
        return any(
            _is_filled(entry) for name, entry in value.items() if name not in ("count", "bytes")
        )
    return bool(value)
