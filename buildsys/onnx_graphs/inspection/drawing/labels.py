"""What is written in the boxes of a picture, and which colour they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from buildsys.onnx_graphs.inspection.drawing.grouping import Box, outline
from buildsys.onnx_graphs.inspection.drawing.text_width import (
    LINE_HEIGHT,
    SMALL,
    TITLE,
    text_width,
    wrapped,
)
from buildsys.onnx_graphs.inspection.plain_graph import TIMES, Body, PlainNode, shape_text

PADDING = 9.0
_WRAP = 34  # characters of a line in a box
INPUT, OUTPUT = "input", "output"  # operators of the boxes at the border of a picture
_SHOWN_NAMES = 12  # of nodes, in what a pointer over a box tells
_KINDS = {
    "product": "Conv ConvTranspose Gemm MatMul Einsum LSTM GRU RNN Attention ConvInteger QLinearConv MatMulInteger "
               "QLinearMatMul DeformConv FusedConv FusedGemm FusedMatMul",
    "norm": "BatchNormalization LayerNormalization InstanceNormalization GroupNormalization LpNormalization "
            "RMSNormalization LRN MeanVarianceNormalization",
    "activation": "Relu LeakyRelu PRelu Elu Celu Selu Sigmoid HardSigmoid HardSwish Swish Tanh Gelu Softmax Clip Mish "
                  "LogSoftmax Softplus Softsign Erf ThresholdedRelu",
    "pool": "MaxPool AveragePool GlobalMaxPool GlobalAveragePool LpPool Resize Upsample GridSample RoiAlign ReduceMean "
            "ReduceMax ReduceSum ReduceMin TopK",
    "shape": "Reshape Transpose Flatten Squeeze Unsqueeze Slice Split Concat Gather GatherND GatherElements Shape Size "
             "Expand Tile Pad Cast Identity ConstantOfShape Range ScatterND ScatterElements DepthToSpace SpaceToDepth",
    "flow": "If Loop Scan SequenceMap",
}  # fmt: skip
_KIND_OF = {operator: kind for kind, operators in _KINDS.items() for operator in operators.split()}
_SHOWN_ATTRIBUTES = {"kernel_shape": "kernel", "strides": "stride", "group": "groups", "perm": "perm", "axis": "axis",
                     "axes": "axes", "to": "to"}  # fmt: skip
_USUAL = {"stride": ("[1, 1]", "[1]", "[1, 1, 1]"), "groups": ("1",)}


@dataclass(frozen=True)
class Picture:
    """Drawn shapes, from (0, 0) on, and how much room they take."""

    shapes: str
    width: float
    height: float
    boxes: int


@dataclass(frozen=True)
class Card:
    """What is written in a box."""

    title: list[str]
    lines: list[str]
    kind: str
    hint: str
    stacked: bool = False
    inner: Sequence[tuple[str, Picture]] = ()  # the bodies of an If or Loop

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        widest = max((text_width(line, TITLE, bold=True) for line in self.title), default=0.0)
        widest = max([widest, *(text_width(line, SMALL) for line in self.lines)])
        inner_width = sum(picture.width + 2 * PADDING for _, picture in self.inner)
        inner_height = max(
            (picture.height + 2.5 * LINE_HEIGHT for _, picture in self.inner), default=0.0
        )
        height = LINE_HEIGHT * (len(self.title) + len(self.lines)) + PADDING * 1.4 + inner_height
        return max(widest + 2 * PADDING, inner_width, 60.0), height


def card_of(box: Box, body: Body, draw_body: Callable[[Body], Picture]) -> Card:
    """Return what a box shows; ``draw_body`` draws what is within a node."""
    node = box.items[0]
    if len(box.items) == 1 and isinstance(node, PlainNode):
        return (
            _end_card(node, body)
            if node.operator in (INPUT, OUTPUT)
            else _node_card(node, body, draw_body)
        )
    nodes = box.nodes
    repeated = box.count > 1
    text = outline(box.pattern if repeated else box.items)
    is_one = "→" not in text and "," not in text
    title = wrapped(f"{text} {TIMES}{box.count}" if repeated and is_one else text, _WRAP)
    lines = [f"{box.count} times in a row"] if repeated and not is_one else []
    lines += [f"{len(nodes)} nodes, {nodes[0].label} …"] if len(nodes) > 1 else []
    last = box.items[-1]
    lines += _made(last, body) if isinstance(last, PlainNode) else []
    lines = [piece for line in lines for piece in wrapped(line, _WRAP + 8)]
    names = [f"{member.operator} {member.label}" for member in nodes[:_SHOWN_NAMES]]
    names += [f"and {len(nodes) - _SHOWN_NAMES} more"] if len(nodes) > _SHOWN_NAMES else []
    kinds = {_kind(member) for member in nodes}
    return Card(
        title,
        lines,
        kinds.pop() if len(kinds) == 1 else "group",
        "\n".join(names),
        stacked=repeated,
    )


def _end_card(node: PlainNode, body: Body) -> Card:
    value = body.value(node.name)
    shape = [str(value)] if value else []
    return Card(wrapped(node.name, _WRAP), shape, "end", f"{node.operator} {node.name}")


def _node_card(node: PlainNode, body: Body, draw_body: Callable[[Body], Picture]) -> Card:
    shown = [
        f"{_SHOWN_ATTRIBUTES[name]} {text}"
        for name, text in node.attributes.items()
        if name in _SHOWN_ATTRIBUTES
    ]
    shown = [
        text
        for text in shown
        if text.partition(" ")[2] not in _USUAL.get(text.partition(" ")[0], ())
    ]
    weights = [
        f"{TIMES} {shape_text(stored.shape)}"
        for name in node.inputs
        if (stored := body.initializers.get(name)) and len(stored.shape) > 1
    ]
    lines = (
        [", ".join(shown)] * bool(shown)
        + weights[:2]
        + ([node.name] if node.name else [])
        + _made(node, body)
    )
    lines = [piece for line in lines for piece in wrapped(line, _WRAP + 8)]
    attributes = (f"{name} = {text}" for name, text in node.attributes.items())
    hint = "\n".join(
        (
            f"{node.operator} {node.label}",
            *attributes,
            *(f"takes {name}" for name in node.inputs if name),
        )
    )
    inner = tuple((name, draw_body(part)) for name, part in node.bodies.items() if part.nodes)
    return Card(wrapped(node.operator, _WRAP), lines, _kind(node), hint, inner=inner)


def _made(node: PlainNode, body: Body) -> list[str]:
    values = [body.value(name) for name in node.outputs[:2] if name]
    return [
        f"→ {shape_text(value.shape)}"
        for value in values
        if value is not None and value.shape is not None
    ]


def _kind(node: PlainNode) -> str:
    domain, _, name = node.operator.rpartition("::")
    if domain and name not in _KIND_OF:
        return "custom"
    return _KIND_OF.get(name, "plain")
