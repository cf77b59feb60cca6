"""Text, colors and sizes of the boxes in a picture."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from buildsys.onnx_graphs.inspection.drawing.grouping import Box, outline
from buildsys.onnx_graphs.inspection.plain_graph import TIMES, Body, PlainNode, shape_text

TITLE, SMALL = 12.0, 10.0  # font sizes in pixels
LINE_HEIGHT = 15.0
PADDING = 9.0
INPUT, OUTPUT = "input", "output"  # operators of the boxes at the border of a picture
# widths relative to the font size, of DejaVu Sans, which is wider than most substitutes
_NARROW, _CAPITAL, _WIDE, _USUAL = 0.4, 0.74, 0.98, 0.645
_NARROW_LETTERS, _WIDE_LETTERS = "iljI.,:;|!'()[]/ ft", f"mwMW@%→⇢…∥{TIMES}"
_BOLD = 1.1
_BREAKS = re.compile(r"(?<=[/.,:_\- ])")
_TITLE_CHARACTERS, _LINE_CHARACTERS = 34, 42
_SHOWN_NAMES = 12  # nodes in a tooltip
_KINDS = {
    "product": """
        Conv ConvTranspose Gemm MatMul Einsum LSTM GRU RNN Attention ConvInteger QLinearConv
        MatMulInteger QLinearMatMul DeformConv FusedConv FusedGemm FusedMatMul""",
    "norm": """
        BatchNormalization LayerNormalization InstanceNormalization GroupNormalization
        LpNormalization RMSNormalization LRN MeanVarianceNormalization""",
    "activation": """
        Relu LeakyRelu PRelu Elu Celu Selu Sigmoid HardSigmoid HardSwish Swish Tanh Gelu Softmax
        Clip Mish LogSoftmax Softplus Softsign Erf ThresholdedRelu""",
    "pool": """
        MaxPool AveragePool GlobalMaxPool GlobalAveragePool LpPool Resize Upsample GridSample
        RoiAlign ReduceMean ReduceMax ReduceSum ReduceMin TopK""",
    "shape": """
        Reshape Transpose Flatten Squeeze Unsqueeze Slice Split Concat Gather GatherND
        GatherElements Shape Size Expand Tile Pad Cast Identity ConstantOfShape Range ScatterND
        ScatterElements DepthToSpace SpaceToDepth""",
    "flow": "If Loop Scan SequenceMap",
}
_KIND_OF = {operator: kind for kind, operators in _KINDS.items() for operator in operators.split()}
_ATTRIBUTES = {  # title of the shown ones, and values that are not worth showing
    "kernel_shape": ("kernel", ()), "strides": ("stride", ("[1, 1]", "[1]", "[1, 1, 1]")),
    "group": ("groups", ("1",)), "perm": ("perm", ()), "axis": ("axis", ()), "axes": ("axes", ()),
    "to": ("to", ()),
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """SVG shapes with their origin at (0, 0), and their size."""

    shapes: str
    width: float
    height: float
    boxes: int


@dataclass(frozen=True)
class BoxLabel:
    """The content of a box."""

    title: list[str]
    lines: list[str]
    kind: str
    tooltip: str
    stacked: bool = False
    inner: Sequence[tuple[str, Picture]] = ()  # the bodies of an If, Loop or Scan

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        widest = max((text_width(line, TITLE, bold=True) for line in self.title), default=0.0)
        widest = max([widest, *(text_width(line, SMALL) for line in self.lines)])
        inner_width = sum(picture.width + 2 * PADDING for _, picture in self.inner)
        inner_height = max((p.height + 2.5 * LINE_HEIGHT for _, p in self.inner), default=0.0)
        height = LINE_HEIGHT * (len(self.title) + len(self.lines)) + PADDING * 1.4 + inner_height
        return max(widest + 2 * PADDING, inner_width, 60.0), height


def label_of(box: Box, body: Body, draw_body: Callable[[Body], Picture]) -> BoxLabel:
    """Return the content of a box. ``draw_body`` draws the bodies of nodes."""
    node = box.items[0]
    if len(box.items) == 1 and isinstance(node, PlainNode):
        if node.operator not in (INPUT, OUTPUT):
            return _node_label(node, body, draw_body)
        value = body.value(node.name)
        shape = [str(value)] if value else []
        return BoxLabel(wrapped(node.name), shape, "end", f"{node.operator} {node.name}")
    nodes, repeated = box.nodes, box.count > 1
    text = outline(box.pattern)
    is_one = "→" not in text and "," not in text
    lines = [f"{box.count} times in a row"] if repeated and not is_one else []
    lines += [f"{len(nodes)} nodes, {nodes[0].label} …"] if len(nodes) > 1 else []
    last = box.items[-1]
    lines += _output_shapes(last, body) if isinstance(last, PlainNode) else []
    names = [f"{member.operator} {member.label}" for member in nodes[:_SHOWN_NAMES]]
    names += [f"and {len(nodes) - _SHOWN_NAMES} more"] if len(nodes) > _SHOWN_NAMES else []
    kinds = {_kind(member) for member in nodes}
    return BoxLabel(
        wrapped(f"{text} {TIMES}{box.count}" if repeated and is_one else text),
        [piece for line in lines for piece in wrapped(line, _LINE_CHARACTERS)],
        kinds.pop() if len(kinds) == 1 else "group",
        "\n".join(names),
        stacked=repeated,
    )


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a line in pixels, as an upper estimate."""
    width = 0.0
    for letter in text:
        if letter in _NARROW_LETTERS:
            width += _NARROW
        elif letter in _WIDE_LETTERS or ord(letter) > 0x2E80:
            width += _WIDE
        else:
            width += _CAPITAL if letter.isupper() else _USUAL
    return width * size * (_BOLD if bold else 1.0)


def wrapped(text: str, longest: int = _TITLE_CHARACTERS) -> list[str]:
    """Break text into lines, after separators if possible."""
    lines = [""]
    for piece in _BREAKS.split(text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > longest:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1].rstrip()) > longest:
            lines[-1:] = [lines[-1][:longest], lines[-1][longest:]]
    return [line.strip() for line in lines if line.strip()]


def _node_label(node: PlainNode, body: Body, draw_body: Callable[[Body], Picture]) -> BoxLabel:
    attributes = [
        f"{_ATTRIBUTES[name][0]} {text}"
        for name, text in node.attributes.items()
        if name in _ATTRIBUTES and text not in _ATTRIBUTES[name][1]
    ]
    weights = [
        f"{TIMES} {shape_text(stored.shape)}"
        for name in node.inputs
        if (stored := body.initializers.get(name)) and len(stored.shape) > 1
    ]
    lines = [", ".join(attributes), *weights[:2], node.name, *_output_shapes(node, body)]
    tooltip = (
        f"{node.operator} {node.label}",
        *(f"{name} = {text}" for name, text in node.attributes.items()),
        *(f"reads {name}" for name in node.inputs if name),
    )
    return BoxLabel(
        wrapped(node.operator),
        [piece for line in lines for piece in wrapped(line, _LINE_CHARACTERS)],
        _kind(node),
        "\n".join(tooltip),
        inner=tuple((name, draw_body(part)) for name, part in node.bodies.items() if part.nodes),
    )


def _output_shapes(node: PlainNode, body: Body) -> list[str]:
    values = (body.value(name) for name in node.outputs[:2] if name)
    return [f"→ {shape_text(value.shape)}" for value in values if value and value.shape is not None]


def _kind(node: PlainNode) -> str:
    domain, _, name = node.operator.rpartition("::")
    return _KIND_OF.get(name, "custom" if domain else "plain")
