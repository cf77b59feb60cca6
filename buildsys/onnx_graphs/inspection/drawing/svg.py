"""Deterministic SVG pictures of graphs: boxes in rows, data flowing down."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape as escape_markup

from buildsys.onnx_graphs.inspection.drawing.grouping import Box, group
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
from buildsys.onnx_graphs.inspection.drawing.subgraph import Part, choose, neighbours
from buildsys.onnx_graphs.inspection.plain_graph import Body, PlainNode

_MARGIN = 20.0
_CONTROL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FONT = f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="{SMALL}"'
_STACK_OFFSET = 5.0  # pixels between the two boxes of a stack
_PALETTE = {  # fill, line
    "product": ("#e3edf7", "#5b84b1"), "norm": ("#e6f0e2", "#6f9a5e"), "activation": ("#faf3dc", "#b79b45"),
    "pool": ("#e0f0ee", "#549a92"), "shape": ("#f2f2f0", "#9a9a94"), "flow": ("#efe8f5", "#8a6bab"),
    "custom": ("#fae6dd", "#c07a55"), "plain": ("#ffffff", "#8a8a8a"), "group": ("#ffffff", "#4a4a4a"),
    "end": ("#4a4a4a", "#4a4a4a"),
}  # fmt: skip


def draw(
    body: Body, title: str, begin: str = "", end: str = "", depth: int | None = None
) -> tuple[str, dict[str, int]]:
    """Return an SVG document of a part of a graph, and its size.

    Raises: UsageError: unknown node or tensor, or no path between them.
    """
    part = choose(body, begin, end, depth)
    picture = _picture(part)
    width = max(picture.width, text_width(title, TITLE, bold=True)) + 2 * _MARGIN
    height = picture.height + 2 * _MARGIN + 2 * LINE_HEIGHT
    left = _number((width - picture.width) / 2)
    document = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_number(width)}" height="{_number(height)}" '
        f'viewBox="0 0 {_number(width)} {_number(height)}" {_FONT}>\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0.8 L8,4 L0,7.2 z" fill="#777777"/></marker></defs>\n'
        '<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text x="{_number(width / 2)}" y="{_number(_MARGIN + 6)}" text-anchor="middle" font-size="{TITLE}" '
        f'font-weight="bold" fill="#222222">{_escaped(title)}</text>\n'
        f'<g transform="translate({left},{_number(_MARGIN + 2 * LINE_HEIGHT)})">\n{picture.shapes}</g>\n</svg>\n'
    )
    return document, {"nodes": len(part.nodes), "boxes": picture.boxes}


def _picture(part: Part) -> Picture:
    ends = neighbours(part)
    inputs = [PlainNode(name, INPUT, (), (name,)) for name in ends["in"]]
    outputs = [PlainNode(name, OUTPUT, (name,), ()) for name in ends["out"]]
    nodes = [*inputs, *part.nodes, *outputs]
    makers = {name: node for node in nodes for name in node.outputs if name}
    edges = [(makers[name], node) for node in nodes for name in node.reads if name in makers]
    columns = group(
        nodes,
        dict.fromkeys(edges),
        fixed=(*inputs, *outputs),
        form=lambda node: _form(node, part.body),
    )
    boxes = [box for column in columns for box in column]
    labels = [label_of(box, part.body, lambda body: _picture(choose(body))) for box in boxes]
    layout = place([label.size for label in labels], _box_edges(boxes, edges))
    shapes = [_edge(path) for path in layout.paths]
    shapes += [_drawn(label, corner) for label, corner in zip(labels, layout.corners, strict=True)]
    return Picture(
        "".join(shapes),
        layout.width + _STACK_OFFSET,
        layout.height,
        len(boxes) - len(inputs) - len(outputs),
    )


def _form(node: PlainNode, body: Body) -> str:
    """Return the known sizes of a node's first output."""
    value = body.value(node.outputs[0]) if node.outputs else None
    return (
        ""
        if value is None or value.shape is None
        else str([size if isinstance(size, int) else "" for size in value.shape])
    )


def _box_edges(
    boxes: Sequence[Box], edges: Sequence[tuple[PlainNode, PlainNode]]
) -> list[tuple[int, int]]:
    number = {box: at for at, box in enumerate(boxes)}
    home = {node: number[box] for box in boxes for node in box.nodes}
    found = {(home[begin], home[end]): None for begin, end in edges if home[begin] != home[end]}
    return list(found)


def _edge(path: Sequence[Point]) -> str:
    """Return an edge: straight within rows, curved between rows."""
    (x, y), *rest = path
    drawn = f"M{_number(x)},{_number(y)}"
    for at, (to_x, to_y) in enumerate(rest):
        if at % 2 == 0:
            drawn += f" L{_number(to_x)},{_number(to_y)}"
        else:
            middle = _number((y + to_y) / 2)
            drawn += (
                f" C{_number(x)},{middle} {_number(to_x)},{middle} {_number(to_x)},{_number(to_y)}"
            )
        x, y = to_x, to_y
    return f'<path d="{drawn}" fill="none" stroke="#777777" stroke-width="1.1" marker-end="url(#tip)"/>\n'


def _drawn(label: BoxLabel, corner: Point) -> str:
    (x, y), (width, height) = corner, label.size
    fill, line = _PALETTE[label.kind]
    radius = 11 if label.kind == "end" else 4
    frame = (
        f'width="{_number(width)}" height="{_number(height)}" rx="{radius}" fill="{fill}" stroke="{line}" '
        'stroke-width="1.1"'
    )
    stack = _rectangle(x + _STACK_OFFSET, y + _STACK_OFFSET, frame) if label.stacked else ""
    ink, faint = ("#ffffff", "#e8e8e8") if label.kind == "end" else ("#222222", "#5f5f5f")
    middle, baseline = _number(x + width / 2), y + PADDING * 0.7 + TITLE
    texts = []
    for text in label.title:
        texts.append(f'<text x="{middle}" y="{_number(baseline)}" text-anchor="middle" font-size="{TITLE}" '
                     f'font-weight="bold" fill="{ink}">{_escaped(text)}</text>')  # fmt: skip
        baseline += LINE_HEIGHT
    for text in label.lines:
        texts.append(
            f'<text x="{middle}" y="{_number(baseline)}" text-anchor="middle" fill="{faint}">{_escaped(text)}</text>'
        )
        baseline += LINE_HEIGHT
    drawn = _rectangle(x, y, frame) + "".join(texts) + _inner(label, x + PADDING, baseline)
    return f"<g><title>{_escaped(label.tooltip)}</title>{stack}{drawn}</g>\n"


def _rectangle(x: float, y: float, frame: str) -> str:
    return f'<rect x="{_number(x)}" y="{_number(y)}" {frame}/>'


def _inner(label: BoxLabel, x: float, y: float) -> str:
    """Return the bodies of a node side by side, below their names."""
    drawn = ""
    for name, picture in label.inner:
        middle = _number(x + picture.width / 2)
        drawn += (
            f'<text x="{middle}" y="{_number(y)}" text-anchor="middle" font-style="italic" fill="#5f5f5f">'
            f"{_escaped(name)}</text>"
        )
        drawn += f'<g transform="translate({_number(x)},{_number(y + LINE_HEIGHT * 0.8)})">{picture.shapes}</g>'
        x += picture.width + 2 * PADDING
    return drawn


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _escaped(text: str) -> str:
    # XML has no control characters
    return escape_markup(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))
