"""Deterministic SVG pictures of graphs: boxes in rows, data flowing down."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape as escape_markup

from buildsys.errors import UsageError
from buildsys.onnx_graphs.inspection.drawing.grouping import group
from buildsys.onnx_graphs.inspection.drawing.labels import (
    INPUT,
    LINE_HEIGHT,
    OUTPUT,
    PADDING,
    SMALL,
    TITLE,
    BoxLabel,
    Picture,
    label_of,
    text_width,
)
from buildsys.onnx_graphs.inspection.drawing.layout import Point, place
from buildsys.onnx_graphs.inspection.plain_graph import CONSTANT, Body, PlainNode
from buildsys.system.printable import printable
from buildsys.system.suggestions import nearest

_MARGIN = 20.0
_FONT = f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="{SMALL}"'
_BOLD = f' font-size="{TITLE}" font-weight="bold"'
_STACK_OFFSET = 5.0  # pixels between the two boxes of a stack
_PALETTE = {  # fill, line
    "product": ("#e3edf7", "#5b84b1"),
    "norm": ("#e6f0e2", "#6f9a5e"),
    "activation": ("#faf3dc", "#b79b45"),
    "pool": ("#e0f0ee", "#549a92"),
    "shape": ("#f2f2f0", "#9a9a94"),
    "flow": ("#efe8f5", "#8a6bab"),
    "custom": ("#fae6dd", "#c07a55"),
    "plain": ("#ffffff", "#8a8a8a"),
    "group": ("#ffffff", "#4a4a4a"),
    "end": ("#4a4a4a", "#4a4a4a"),
}
_DOCUMENT = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" {font}>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto"><path d="M0,0.8 L8,4 L0,7.2 z" fill="#777777"/></marker></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
{title}
<g transform="translate({left},{top})">
{shapes}</g>
</svg>
"""


def draw(
    body: Body, title: str, begin: str = "", end: str = "", depth: int | None = None
) -> tuple[str, dict[str, int]]:
    """Return a part of a graph as SVG, and its size.

    Raises: UsageError: unknown node or tensor, or no path between them.
    """
    nodes = choose(body, begin, end, depth)
    picture = _picture(body, nodes)
    width = max(picture.width, text_width(title, TITLE, bold=True)) + 2 * _MARGIN
    document = _DOCUMENT.format(
        font=_FONT,
        width=_number(width),
        height=_number(picture.height + 2 * _MARGIN + 2 * LINE_HEIGHT),
        title=_text(title, width / 2, _MARGIN + 6, "#222222", _BOLD),
        left=_number((width - picture.width) / 2),
        top=_number(_MARGIN + 2 * LINE_HEIGHT),
        shapes=picture.shapes,
    )
    return document, {"nodes": len(nodes), "boxes": picture.boxes}


def choose(body: Body, begin: str = "", end: str = "", depth: int | None = None) -> list[PlainNode]:
    """Return the nodes on all paths from ``begin`` to ``end``, without Constants.

    Both are names of nodes or tensors; "" stands for the border of the graph. ``depth`` limits the
    nodes of a path, counted from ``begin``, or else from ``end``, or else from the inputs.

    Raises: UsageError: unknown node or tensor, or no path between them.
    """
    nodes = [node for node in body.nodes if node.operator != CONSTANT]
    wanted = set(nodes)
    if begin or (depth is not None and not end):
        names = [begin] if begin else body.inputs
        starts = {node for name in names for node in _nodes(body, name, forwards=True)}
        wanted &= _reached(body, starts, depth, forwards=True)
    if end:
        ends = set(_nodes(body, end, forwards=False))
        wanted &= _reached(body, ends, None if begin else depth, forwards=False)
    if not wanted:
        within = f" within {depth} nodes" if depth is not None else ""
        path = f"from {begin or 'the inputs'} to {end or 'the outputs'}{within}"
        raise UsageError(f"no path leads {path}")
    return [node for node in nodes if node in wanted]


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
    body: Body, starts: set[PlainNode], depth: int | None, *, forwards: bool
) -> set[PlainNode]:
    found: set[PlainNode] = set()
    level, distance = starts, 1
    while level and (depth is None or distance <= depth):
        found |= level
        if forwards:
            names = (name for node in level for name in node.outputs)
            near = {taker for name in names for taker in body.consumers.get(name, ())}
        else:
            names = (name for node in level for name in node.reads)
            near = {body.producers[name] for name in names if name in body.producers}
        level, distance = near - found, distance + 1
    return found


def _picture(body: Body, part: Sequence[PlainNode]) -> Picture:
    members = set(part)
    incoming = [
        name
        for name in (name for node in part for name in node.reads)
        if body.producers.get(name) not in members and name not in body.stored
    ]
    outgoing = [
        name
        for name in (name for node in part for name in node.outputs)
        if name in body.outputs or not members.issuperset(body.consumers.get(name, ()))
    ]
    inputs = [PlainNode(name, INPUT, (), (name,)) for name in dict.fromkeys(incoming)]
    outputs = [PlainNode(name, OUTPUT, (name,), ()) for name in dict.fromkeys(outgoing)]
    nodes = [*inputs, *part, *outputs]
    makers = {name: node for node in nodes for name in node.outputs if name}
    edges = [(makers[name], node) for node in nodes for name in node.reads if name in makers]

    def known_sizes(node: PlainNode) -> str:
        value = body.value(node.outputs[0]) if node.outputs else None
        if value is None or value.shape is None:
            return ""
        return str([size if isinstance(size, int) else "" for size in value.shape])

    ends = (*inputs, *outputs)
    columns = group(nodes, dict.fromkeys(edges), fixed=ends, form=known_sizes)
    boxes = [box for column in columns for box in column]
    labels = [label_of(box, body, lambda inner: _picture(inner, choose(inner))) for box in boxes]
    home = {node: at for at, box in enumerate(boxes) for node in box.nodes}
    box_edges = {(home[a], home[b]): None for a, b in edges if home[a] != home[b]}
    layout = place([label.size for label in labels], list(box_edges))
    shapes = [_edge(path) for path in layout.paths]
    shapes += [_box(label, corner) for label, corner in zip(labels, layout.corners, strict=True)]
    width = layout.width + _STACK_OFFSET
    return Picture("".join(shapes), width, layout.height, len(boxes) - len(ends))


def _edge(path: Sequence[Point]) -> str:
    """Return an edge: straight within rows, curved between rows."""
    (x, y), *rest = path
    drawn = f"M{_number(x)},{_number(y)}"
    for at, (to_x, to_y) in enumerate(rest):
        target = f"{_number(to_x)},{_number(to_y)}"
        if at % 2 == 0:
            drawn += f" L{target}"
        else:
            middle = _number((y + to_y) / 2)
            drawn += f" C{_number(x)},{middle} {_number(to_x)},{middle} {target}"
        x, y = to_x, to_y
    line = 'stroke="#777777" stroke-width="1.1" marker-end="url(#tip)"'
    return f'<path d="{drawn}" fill="none" {line}/>\n'


def _box(label: BoxLabel, corner: Point) -> str:
    (x, y), (width, height) = corner, label.size
    fill, line = _PALETTE[label.kind]
    radius = 11 if label.kind == "end" else 4
    size = f'width="{_number(width)}" height="{_number(height)}" rx="{radius}"'
    frame = f'{size} fill="{fill}" stroke="{line}" stroke-width="1.1"'
    drawn = ""
    for shift in (_STACK_OFFSET, 0.0) if label.stacked else (0.0,):
        drawn += f'<rect x="{_number(x + shift)}" y="{_number(y + shift)}" {frame}/>'
    ink, faint = ("#ffffff", "#e8e8e8") if label.kind == "end" else ("#222222", "#5f5f5f")
    baseline = y + PADDING * 0.7 + TITLE
    for text, color, style in (
        *((text, ink, _BOLD) for text in label.title),
        *((text, faint, "") for text in label.lines),
    ):
        drawn += _text(text, x + width / 2, baseline, color, style)
        baseline += LINE_HEIGHT
    x += PADDING
    for name, picture in label.inner:  # the bodies side by side, below their names
        drawn += _text(name, x + picture.width / 2, baseline, "#5f5f5f", ' font-style="italic"')
        place = f"{_number(x)},{_number(baseline + LINE_HEIGHT * 0.8)}"
        drawn += f'<g transform="translate({place})">{picture.shapes}</g>'
        x += picture.width + 2 * PADDING
    return f"<g><title>{_escaped(label.tooltip)}</title>{drawn}</g>\n"


def _text(text: str, x: float, y: float, color: str, style: str = "") -> str:
    place = f'x="{_number(x)}" y="{_number(y)}" text-anchor="middle"'
    return f'<text {place}{style} fill="{color}">{_escaped(text)}</text>'


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _escaped(text: str) -> str:
    return escape_markup(printable(text))
