"""Parts of a graph: the nodes on all paths between two names."""

from __future__ import annotations

from buildsys.errors import UsageError
from buildsys.onnx_graphs.inspection.plain_graph import CONSTANT, Body, PlainNode
from buildsys.system.suggestions import nearest


def choose(body: Body, begin: str = "", end: str = "", depth: int | None = None) -> list[PlainNode]:
    """List the nodes on all paths from ``begin`` to ``end``, without Constants.

    Both are names of nodes or tensors; "" stands for the border of the graph. ``depth`` limits the
    nodes of a path, counted from ``begin``, or else from ``end``, or else from the inputs.

    Raises: UsageError: unknown node or tensor, or no path between them.
    """
    nodes = [node for node in body.nodes if node.operator != CONSTANT]
    chosen = set(nodes)
    if begin or (depth is not None and not end):
        names = [begin] if begin else body.inputs
        starts = {node for name in names for node in _nodes(body, name, forwards=True)}
        chosen &= _reached(body, starts, depth, forwards=True)
    if end:
        ends = set(_nodes(body, end, forwards=False))
        chosen &= _reached(body, ends, None if begin else depth, forwards=False)
    if not chosen:
        within = f" within {depth} nodes" if depth is not None else ""
        path = f"from {begin or 'the inputs'} to {end or 'the outputs'}{within}"
        raise UsageError(f"no path leads {path}")
    return [node for node in nodes if node in chosen]


def _nodes(body: Body, name: str, *, forwards: bool) -> list[PlainNode]:
    """Find the node with a name, or the nodes next to a tensor.

    Raises: UsageError: unknown name.
    """
    named = next((node for node in body.nodes if node.name == name), None)
    if named:
        return [named]
    consumers = body.consumers.get(name, [])
    producer = [body.producers[name]] if name in body.producers else []
    nodes = consumers or producer if forwards else producer or consumers[:1]
    if nodes or name in body.inputs:
        return nodes
    names = [*(node.label for node in body.nodes), *body.producers, *body.inputs]
    near = nearest(name, names)
    hint = f"nearest: {', '.join(near)}" if near else "`--nodes` lists all nodes and their tensors"
    raise UsageError(f"the graph has no node or tensor {name!r}", hint)


def _reached(
    body: Body, starts: set[PlainNode], depth: int | None, *, forwards: bool
) -> set[PlainNode]:
    reached: set[PlainNode] = set()
    level, distance = starts, 1
    while level and (depth is None or distance <= depth):
        reached |= level
        if forwards:
            names = (name for node in level for name in node.outputs)
            near = {reader for name in names for reader in body.consumers.get(name, ())}
        else:
            names = (name for node in level for name in node.reads)
            near = {body.producers[name] for name in names if name in body.producers}
        level, distance = near - reached, distance + 1
    return reached
