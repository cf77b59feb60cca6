"""The part of a graph in a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from buildsys.errors import UsageError
from buildsys.onnx_graphs.inspection.plain_graph import CONSTANT, Body, PlainNode
from buildsys.system.suggestions import nearest


@dataclass(frozen=True)
class Part:
    """Nodes in the order of the graph, without Constants."""

    nodes: list[PlainNode]
    body: Body


def choose(body: Body, begin: str = "", end: str = "", depth: int | None = None) -> Part:
    """Return the nodes on all paths from ``begin`` to ``end``.

    Both are names of nodes or tensors; "" stands for the border of the graph. ``depth`` limits the
    nodes of a path, counted from ``begin``, or else from ``end``, or else from the inputs.

    Raises: UsageError: unknown node or tensor, or no path between them.
    """

    def consumers(node: PlainNode) -> Iterable[PlainNode]:
        return (taker for name in node.outputs for taker in body.consumers.get(name, ()))

    def producers(node: PlainNode) -> Iterable[PlainNode]:
        return (body.producers[name] for name in node.reads if name in body.producers)

    nodes = [node for node in body.nodes if node.operator != CONSTANT]
    wanted = set(nodes)
    if begin or (depth is not None and not end):
        names = [begin] if begin else body.inputs
        starts = [node for name in names for node in _nodes(body, name, forwards=True)]
        wanted &= _reached(starts, consumers, depth)
    if end:
        limit = depth if not begin else None
        ends = _nodes(body, end, forwards=False)
        wanted &= _reached(ends, producers, limit)
    if not wanted:
        within = f" within {depth} nodes" if depth is not None else ""
        path = f"from {begin or 'the inputs'} to {end or 'the outputs'}{within}"
        raise UsageError(f"no path leads {path}")
    return Part([node for node in nodes if node in wanted], body)


def _nodes(body: Body, name: str, *, forwards: bool) -> list[PlainNode]:
    """Return the node with a name, or those next to a tensor.

    Raises: UsageError: unknown name.
    """
    named = next((node for node in body.nodes if node.name == name), None)
    if named:
        return [named]
    consumers = body.consumers.get(name, [])
    producer = [body.producers[name]] if name in body.producers else []
    found = consumers or producer if forwards else producer or consumers[:1]
    if found or name in body.inputs:
        return found
    names = [*(node.label for node in body.nodes), *body.producers, *body.inputs]
    near = nearest(name, names)
    hint = f"nearest: {', '.join(near)}" if near else "`--nodes` lists all nodes and their tensors"
    raise UsageError(f"the graph has no node or tensor {name!r}", hint)


def _reached(
    starts: Iterable[PlainNode], step: Callable[[PlainNode], Iterable[PlainNode]], depth: int | None
) -> set[PlainNode]:
    found: set[PlainNode] = set()
    level, distance = set(starts), 1
    while level and (depth is None or distance <= depth):
        found |= level
        level = {other for node in level for other in step(node)} - found
        distance += 1
    return found


def tensors_across_border(part: Part) -> Mapping[str, list[str]]:
    """Return the tensors across the border, ``in`` and ``out``."""
    members, body = set(part.nodes), part.body
    incoming = [
        name
        for node in part.nodes
        for name in node.reads
        if body.producers.get(name) not in members and name not in body.stored
    ]
    outgoing = [
        name
        for node in part.nodes
        for name in node.outputs
        if name in body.outputs or not members.issuperset(body.consumers.get(name, ()))
    ]
    return {"in": list(dict.fromkeys(incoming)), "out": list(dict.fromkeys(outgoing))}
