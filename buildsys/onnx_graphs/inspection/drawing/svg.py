"""Deterministic SVG pictures of graphs: boxes in rows, data flowing down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape as escape_markup

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
from buildsys.onnx_graphs.inspection.drawing.subgraph import Part, choose, tensors_across_border
from buildsys.onnx_graphs.inspection.plain_graph import Body, PlainNode

_MARGIN = 20.0
_CONTROL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
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
    part = choose(body, begin, end, depth)
    picture = _picture(part)
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
    return document, {"nodes": len(part.nodes), "boxes": picture.boxes}


def _picture(part: Part) -> Picture:
    body, border = part.body, tensors_across_border(part)
    inputs = [PlainNode(name, INPUT, (), (name,)) for name in border["in"]]
    outputs = [PlainNode(name, OUTPUT, (name,), ()) for name in border["out"]]
    nodes = [*inputs, *part.nodes, *outputs]
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
    labels = [label_of(box, body, lambda inner: _picture(choose(inner))) for box in boxes]
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
    drawn = _rectangle(x + _STACK_OFFSET, y + _STACK_OFFSET, frame) if label.stacked else ""
    drawn += _rectangle(x, y, frame)
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


def _rectangle(x: float, y: float, frame: str) -> str:
    return f'<rect x="{_number(x)}" y="{_number(y)}" {frame}/>'


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _escaped(text: str) -> str:
    # XML has no control characters
    return escape_markup(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))
