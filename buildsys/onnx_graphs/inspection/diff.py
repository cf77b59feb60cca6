"""Differences between two graphs: nodes, shapes, initializers, opsets and interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.onnx_graphs.inspection.node_changes import added_group, node_changes, removed_group
from buildsys.onnx_graphs.inspection.node_matching import Matching, regions
from buildsys.onnx_graphs.inspection.plain_graph import (
    Body,
    Function,
    PlainModel,
    StoredTensor,
    Value,
    operator_histogram,
)


def compare(first: PlainModel, second: PlainModel) -> dict[str, Any]:
    """Return all differences as JSON values; ``is_equal`` if there are none."""
    histograms = operator_histogram(first), operator_histogram(second)
    models = first, second
    headers = [{"ir_version": one.ir_version, "producer": one.producer} for one in models]
    functions = [{one.name: _text(one) for one in model.functions} for model in models]
    interface = {}
    for side in ("inputs", "outputs"):
        ours, theirs = (
            {name: str(model.body.value(name)) for name in getattr(model.body, side)}
            for model in models
        )
        changes = _mapping_changes(ours, theirs).items()
        interface[side] = [{"name": name, "from": was, "to": now} for name, (was, now) in changes]
    found = {
        "header": _mapping_changes(headers[0], headers[1]),
        "opsets": _mapping_changes(first.opsets, second.opsets),
        "functions": _mapping_changes(functions[0], functions[1]),
        "interface": interface,
        "operators": _mapping_changes(histograms[0], histograms[1], absent=0),
        **compare_bodies(first.body, second.body),
    }
    nodes = [sum(histogram.values()) for histogram in histograms]
    return {"nodes": nodes, "is_equal": not _is_filled(found), **found}


def compare_bodies(first: Body, second: Body) -> dict[str, Any]:
    """Return the differences of nodes, shapes and initializers."""

    def difference(one: Body, other: Body) -> dict[str, Any]:
        found = compare_bodies(one, other)
        return found if _is_filled(found) else {}

    matching = Matching(first, second)
    changes = {change.node: change for change in node_changes(matching, difference)}
    gone = regions(matching.removed, first)
    removed = [removed_group(nodes, matching, changes) for nodes in gone]
    added = [added_group(nodes, matching, removed) for nodes in regions(matching.added, second)]
    shapes = []
    for name, other in matching.tensors.items():
        was, now = first.value(name), second.value(other)
        if was and now and _is_known(was) and _is_known(now) and was != now:
            change = {"tensor": other, "was_called": name, "from": str(was), "to": str(now)}
            shapes.append(change)
    return {
        "gone": [group.as_json() for group in removed],
        "come": [group.as_json() for group in added],
        "changed": [change.as_json() for change in changes.values()],
        "renamed": [
            {"from": node.label, "to": other.label, "operator": node.operator}
            for node, other in matching.nodes.items()
            if node.label != other.label
        ],
        "shapes": shapes,
        "initializers": initializer_changes(first.initializers, second.initializers),
    }


def _is_known(value: Value) -> bool:
    return value.shape is not None and None not in value.shape


def initializer_changes(
    first: Mapping[str, StoredTensor], second: Mapping[str, StoredTensor]
) -> dict[str, Any]:
    """Return removed, added, changed and renamed initializers."""
    removed = {name: stored for name, stored in first.items() if name not in second}
    added = {name: stored for name, stored in second.items() if name not in first}
    by_content: dict[str, list[str]] = {}
    for name, stored in added.items():
        by_content.setdefault(stored.digest, []).append(name)
    renamed = []
    for name, stored in list(removed.items()):
        if stored.digest and by_content.get(stored.digest):
            other = by_content[stored.digest].pop(0)
            renamed.append({"from": name, "to": other})
            del removed[name], added[other]

    def text(stored: StoredTensor) -> str:
        return f"{stored.dtype} {list(stored.shape)}"

    changed = [
        {"name": name, "from": text(stored), "to": text(second[name])}
        for name, stored in first.items()
        if name in second and stored.digest != second[name].digest
    ]
    return {
        "gone": [stored.as_json() for stored in removed.values()],
        "come": [stored.as_json() for stored in added.values()],
        "changed": changed,
        "renamed": renamed,
        "count": [len(first), len(second)],
        "bytes": [sum(one.bytes for one in side.values()) for side in (first, second)],
    }


def _mapping_changes(
    first: Mapping[str, Any], second: Mapping[str, Any], absent: int | None = None
) -> dict[str, list[Any]]:
    pairs = {
        name: [first.get(name, absent), second.get(name, absent)] for name in (*first, *second)
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _text(function: Function) -> str:
    return "; ".join(
        f"{node.operator}({', '.join(node.inputs)})→{', '.join(node.outputs)}"
        f"{dict(node.attributes)}"
        for node in function.nodes
    )


def _is_filled(value: Any) -> bool:
    """Return True for a part with differences. Counts and sizes are none."""
    if isinstance(value, Mapping):
        return any(
            _is_filled(entry) for name, entry in value.items() if name not in ("count", "bytes")
        )
    return bool(value)
