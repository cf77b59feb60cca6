"""The part of a graph that a picture shows: from a node or tensor on, up to another, so many nodes deep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from buildsys.errors import UsageError
from buildsys.onnx_graphs.inspection.plain_graph import Body, PlainNode
from buildsys.system.suggestions import nearest

_CONSTANT = "Constant"


@dataclass(frozen=True)
class Part:
    """Nodes in the order of the graph, without Constants, which are drawn with what takes them."""

    nodes: list[PlainNode]
    body: Body


def choose(body: Body, begin: str = "", end: str = "", depth: int | None = None) -> Part:
    """Return the nodes on all ways from ``begin`` to ``end``, each the name of a node or tensor, "" for the border.

    ``depth`` is how many nodes a way may have, counted from ``begin``, or else from ``end``, or else from the inputs.

    Raises: UsageError: there is no such node or tensor, or no way between them.
    """
    nodes = [node for node in body.nodes if node.operator != _CONSTANT]
    wanted = set(nodes)
    if begin or (depth is not None and not end):
        starts = (
            _starts(body, begin)
            if begin
            else [node for name in body.inputs for node in body.consumers.get(name, ())]
        )
        wanted &= _reached(starts, lambda node: _behind(node, body), depth)
    if end:
        limit = depth if not begin else None
        wanted &= _reached(_ends(body, end), lambda node: _before(node, body), limit)
    if not wanted:
        raise UsageError(f"no way leads from {begin or 'the inputs'} to {end or 'the outputs'}" + (
            f" within {depth} nodes" if depth is not None else ""
        ))  # fmt: skip
    return Part([node for node in nodes if node in wanted], body)


def _starts(body: Body, name: str) -> list[PlainNode]:
    """Return the node of a name, or the nodes that take the tensor of this name."""
    node = _node(body, name)
    return [node] if node else body.consumers.get(name) or [_known(body, name)]


def _ends(body: Body, name: str) -> list[PlainNode]:
    """Return the node of a name, or the node that makes the tensor of this name."""
    node = _node(body, name)
    return (
        [node]
        if node
        else [body.producers[name]]
        if name in body.producers
        else [_known(body, name)]
    )


def _node(body: Body, name: str) -> PlainNode | None:
    return next((node for node in body.nodes if node.name == name), None)


def _known(body: Body, name: str) -> PlainNode:
    """Return the one node that a tensor ends at, where it is the other way round than asked.

    Raises: UsageError: the name is none of the graph's.
    """
    if name in body.producers:
        return body.producers[name]
    if name in body.consumers:
        return body.consumers[name][0]
    names = [*(node.label for node in body.nodes), *body.producers, *body.inputs]
    near = nearest(name, names)
    hint = f"nearest: {', '.join(near)}" if near else "`--nodes` tells all nodes and their tensors"
    raise UsageError(f"the graph has no node or tensor {name!r}", hint)


def _behind(node: PlainNode, body: Body) -> Iterable[PlainNode]:
    return (taker for name in node.outputs for taker in body.consumers.get(name, ()))


def _before(node: PlainNode, body: Body) -> Iterable[PlainNode]:
    return (body.producers[name] for name in node.reads if name in body.producers)


def _reached(
    starts: Iterable[PlainNode], step: Callable[[PlainNode], Iterable[PlainNode]], depth: int | None
) -> set[PlainNode]:
    found: dict[PlainNode, int] = {}
    level = list(starts)
    distance = 1
    while level and (depth is None or distance <= depth):
        fresh = [node for node in dict.fromkeys(level) if node not in found]
        found.update(dict.fromkeys(fresh, distance))
        level = [other for node in fresh for other in step(node)]
        distance += 1
    return set(found)


def neighbours(part: Part) -> Mapping[str, list[str]]:
    """Return the tensors that cross the border: ``in`` and ``out``, in the order of the graph."""
    members, body = set(part.nodes), part.body
    incoming: dict[str, None] = {}
    outgoing: dict[str, None] = {}
    for node in part.nodes:
        for name in node.reads:
            maker = body.producers.get(name)
            if (
                maker not in members
                and name not in body.initializers
                and not (maker and maker.operator == _CONSTANT)
            ):
                incoming[name] = None
        for name in node.outputs:
            if name in body.outputs or any(
                taker not in members for taker in body.consumers.get(name, ())
            ):
                outgoing[name] = None
    return {"in": list(incoming), "out": list(outgoing)}
