"""Graphs as text in the DOT language of graphviz, data flowing down."""

import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from buildsys.errors import UsageError
from buildsys.onnx_graphs.inspection.graph import CONSTANT, TIMES, Body, PlainNode, shape_text
from buildsys.system.printable import nearest, printable

_BACKSLASH = "\N{REVERSE SOLIDUS OPERATOR}"
_LONGEST = 44  # characters of a line
_LONGEST_BLOCK = 400  # nodes
_FEWEST_SAVED = 4  # nodes; a shorter repetition is drawn as it is
_COLORS = {  # operators -> fill and line
    r"\w*(Conv|Gemm|MatMul)\w*|Einsum|LSTM|GRU|RNN|Attention": ("#e3edf7", "#5b84b1"),
    r"\w*(Relu|[ECS]elu|Elu|Sigmoid|Swish|Tanh|Gelu|Soft\w+)|Clip|Mish|Erf": ("#faf3dc", "#b79b45"),
    r"\w*(Normalization|Pool)|LRN|Reduce\w+|Resize": ("#e6f0e2", "#6f9a5e"),
    "If|Loop|Scan|SequenceMap": ("#efe8f5", "#8a6bab"),
}
_PLAIN, _CUSTOM = ("#ffffff", "#8a8a8a"), ("#fae6dd", "#c07a55")
_ATTRIBUTES = ("kernel_shape", "strides", "group", "perm", "axis", "axes", "to")
Sources = Sequence[tuple[int | str, ...]]  # per node: numbers of producers, names of other inputs


_HEADER = """\
digraph {
bgcolor="white"; fontname="DejaVu Sans"; fontsize=12; fontcolor="#444444"; ranksep=0.3; nodesep=0.2
nslimit=2; nslimit1=2; mclimit=0.3
node [shape=box, style="filled,rounded", fontname="DejaVu Sans", fontsize=9, margin="0.12,0.05"]
edge [color="#777777", arrowsize=0.6]
"""
_FRAME = 'style="rounded"; color="#9a9a94"; fontsize=10; '
_TENSOR = 'fillcolor="#4a4a4a", color="#4a4a4a", fontcolor="white"'


class Drawing(NamedTuple):
    """DOT text with its size."""

    dot: str
    nodes: int  # without constants
    boxes: int


class Block(NamedTuple):
    """Equal runs of consecutive nodes; ``nodes`` are the first of them."""

    nodes: tuple[int, ...]
    runs: int


def draw(
    body: Body, title: str, begin: str = "", end: str = "", depth: int | None = None
) -> Drawing:
    """Describe a part of a graph, with repeated blocks drawn once.

    Raises: UsageError: unknown node or tensor, or no path between them.
    """
    constants, nodes = set(body.stored), list[PlainNode]()
    for node in choose(body, begin, end, depth):
        is_output = not set(body.outputs).isdisjoint(node.outputs)
        if node.reads and constants.issuperset(node.reads) and not is_output:
            constants.update(node.outputs)
        else:
            nodes.append(node)
    labels = [_lines(node, body) for node in nodes]
    producers = {name: n for n, node in enumerate(nodes) for name in node.outputs if name}
    sources = [
        tuple(producers.get(name, name) for name in node.reads if name not in constants)
        for node in nodes
    ]
    items, drawn = fold(["\n".join(lines) for lines in labels], sources)
    ends: dict[tuple[str, str], str] = {}
    edges: dict[str, None] = {}
    for number in sorted(set(drawn)):
        for source in sources[number]:
            if isinstance(source, int):
                edges[f"{drawn[source]} -> {number}"] = None
            else:
                end = ends.setdefault(("input", source), f"end{len(ends)}")
                edges[f"{end} -> {number}"] = None
    members = set(nodes)
    for number, node in enumerate(nodes):
        for name in filter(None, node.outputs):
            if name in body.outputs or not members.issuperset(body.consumers.get(name, ())):
                end = ends.setdefault(("output", name), f"end{len(ends)}")
                edges[f"{drawn[number]} -> {end}"] = None
    lines = [_HEADER, f"label={_quoted(title)}; labelloc=t"]
    for item in items:
        if item.runs > 1:
            label = _quoted(f"{TIMES} {item.runs}")
            lines.append(f"subgraph cluster_{item.nodes[0]} {{ {_FRAME}label={label}")
        lines += [_box(number, nodes[number], labels[number]) for number in item.nodes]
        lines += ["}"] if item.runs > 1 else []
    for (_, name), end in ends.items():
        texts = filter(None, (_shortened(name), body.value(name)))
        label = "<br/>".join(map(_escaped, texts))
        lines.append(f"{end} [label=<{label}>, tooltip={_quoted(name)}, {_TENSOR}]")
    return Drawing("\n".join((*lines, *edges, "}\n")), len(nodes), len(set(drawn)))


def _lines(node: PlainNode, body: Body) -> list[str]:
    """Write what equal nodes have in common: operator, attributes, weights and output shapes."""
    attributes = [
        f"{name} {node.attributes[name]}" for name in _ATTRIBUTES if name in node.attributes
    ]
    stored = [body.initializers[name] for name in node.inputs if name in body.initializers]
    outputs = (body.value(name) for name in node.outputs[:2] if name)
    return [
        node.operator,
        *filter(None, [", ".join(attributes)]),
        *[f"{TIMES} {shape_text(s.shape)}" for s in stored if len(s.shape) > 1][:2],
        *(f"→ {shape_text(v.shape)}" for v in outputs if v and v.shape is not None),
    ]


def _box(number: int, node: PlainNode, lines: Sequence[str]) -> str:
    domain, _, name = node.operator.rpartition("::")
    colors = (color for pattern, color in _COLORS.items() if re.fullmatch(pattern, name))
    fill, line = next(colors, _CUSTOM if domain else _PLAIN)
    operator, *details = map(_escaped, lines)
    texts = [*filter(None, [_escaped(_shortened(node.name))]), *details]
    rest = "".join(f"<br/>{text}" for text in texts)
    label = f'<<font point-size="11"><b>{operator}</b></font>{rest}>'
    tooltip = _quoted(f"{node.operator} {node.label}")
    return f'{number} [label={label}, tooltip={tooltip}, fillcolor="{fill}", color="{line}"]'


def _shortened(text: str) -> str:
    """Keep the end of a long name, where it differs from others."""
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"


def _escaped(value: object) -> str:
    """Escape text: markup and graphviz's own escapes."""
    text = escape(printable(str(value)))
    # graphviz expands escapes such as \N even after entities, so that no quoting is safe
    return text.replace("\\", _BACKSLASH).replace("\n", " ")


def _quoted(text: str) -> str:
    """Quote text outside of labels, where graphviz reads entities as well."""
    return f'"{_escaped(text)}"'


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
        path = f"from {begin or 'the inputs'} to {end or 'the outputs'}"
        raise UsageError(f"no path leads {path}", "exchange the two, or choose others")
    return [node for node in nodes if node in chosen]


def _nodes(body: Body, name: str, *, forwards: bool) -> list[PlainNode]:
    """Find the node with a name, or the nodes next to a tensor.

    Raises: UsageError: unknown name.
    """
    named = [node for node in body.nodes if node.name == name]
    consumers = body.consumers.get(name, [])
    producer = [body.producers[name]] if name in body.producers else []
    nodes = named or (consumers or producer if forwards else producer or consumers[:1])
    if nodes or name in body.inputs:
        return nodes
    near = nearest(name, [*(node.label for node in body.nodes), *body.producers, *body.inputs])
    hint = f"nearest: {', '.join(near)}" if near else "`--nodes` lists all nodes and their tensors"
    raise UsageError(f"the graph has no node or tensor {name!r}", hint)


def _reached(
    body: Body, level: set[PlainNode], depth: int | None, *, forwards: bool
) -> set[PlainNode]:
    reached = set[PlainNode]()
    while level and depth != 0:
        reached |= level
        if forwards:
            names = (name for node in level for name in node.outputs)
            near = {reader for name in names for reader in body.consumers.get(name, ())}
        else:
            names = (name for node in level for name in node.reads)
            near = {body.producers[name] for name in names if name in body.producers}
        level, depth = near - reached, depth and depth - 1
    return reached


def fold(labels: Sequence[str], sources: Sources) -> tuple[list[Block], list[int]]:
    """Find repeated blocks; return all blocks, and the drawn node that stands for each node."""

    def is_equal(node: int, length: int) -> bool:
        first, second = sources[node], sources[node + length]
        if labels[node] != labels[node + length] or len(first) != len(second):
            return False
        return all(
            a == b or (isinstance(a, int) and isinstance(b, int) and b - a == length)
            for a, b in zip(first, second, strict=True)
        )

    drawn, blocks = list(range(len(labels))), list[Block]()
    begin, end = 0, len(labels)
    while begin < end:
        length, count, most_saved = 1, 1, _FEWEST_SAVED - 1
        for size in range(1, min((end - begin) // 2, _LONGEST_BLOCK) + 1):
            stop = begin
            while stop < end - size and is_equal(stop, size):
                stop += 1
            repeats = (stop - begin) // size + 1
            if (repeats - 1) * size > most_saved:
                length, count, most_saved = size, repeats, (repeats - 1) * size
        stop = begin + length * count
        for node in range(begin + length, stop):
            drawn[node] = drawn[node - length]
        blocks.append(Block(tuple(range(begin, begin + length)), count))
        begin = stop
    return blocks, drawn
