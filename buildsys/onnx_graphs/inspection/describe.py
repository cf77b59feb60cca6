"""Descriptions of graphs for ``buildsys inspect`` and the report.

Multiply-accumulates are those of convolutions, matrix products and recurrent layers, from their
shapes. Element-wise operators, normalizations and poolings count as 0: they cost memory traffic.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from onnx import ModelProto

from buildsys.onnx_graphs.graph_reader import inline_all
from buildsys.onnx_graphs.inspection.graph import Body, PlainNode, Shape, StoredTensor, plain_model
from buildsys.onnx_graphs.tensor_types import without_weights

_LARGEST = 5
_NODE_FIELDS = ("name", "label", "operator", "inputs", "outputs", "attributes")
# indices, shapes and flags
_NOT_WEIGHTS = ("int64", "int32", "int16", "bool", "string", "undefined")


def describe(proto: ModelProto, dims: Mapping[str, int]) -> dict[str, Any]:
    """Describe a model without its large weights.

    ``dims`` are sizes of dynamic dimensions; MACs are evaluated at them.
    """
    model, sized = plain_model(proto), plain_model(proto, dims)
    macs = _count(proto, dims)
    counts = zip(model.body.walk(), macs_per_node(sized.body), strict=True)
    return {
        "ir_version": model.ir_version,
        "producer": model.producer,
        "opsets": dict(model.opsets),
        "inputs": [_port(model.body, name) for name in model.body.inputs],
        "outputs": [_port(model.body, name) for name in model.body.outputs],
        "operators": model.operators,
        "initializers": _stored(model.initializers),
        "parameters": _weights(model.initializers),
        "macs": {
            "total": macs.total,
            "complete": macs.is_complete,
            "dims": dict(dims),
            "operators": {
                name: {"macs": number, "nodes": macs.nodes[name]}
                for name, number in macs.by_operator.most_common()
            },
            "not_counted": dict(macs.not_counted),
            "loops_counted_once": macs.loops,
        },
        "functions": [
            {
                "name": name,
                "inputs": body.inputs,
                "outputs": body.outputs,
                "operators": body.operators,
            }
            for name, body in model.functions.items()
        ],
        "nodes": [
            {
                **{name: getattr(node, name) for name in _NODE_FIELDS},
                "macs": number,
                "inside": inside,
            }
            for (node, inside), (_, number) in counts
        ],
        "tensors": _tensors(model.body),
    }


def report_facts(proto: ModelProto, dims: Mapping[str, int]) -> dict[str, Any]:
    """Collect the facts of a graph for the report; ``dims`` are sizes of dynamic dimensions."""
    model, macs = plain_model(proto), _count(proto, dims)
    return {
        "opsets": dict(model.opsets),
        "initializers": _stored(model.initializers),
        "weights": _weights(model.initializers),
        "macs": {
            "total": macs.total if macs.is_complete else None,  # a part would look complete
            "operators": dict(macs.by_operator) if macs.is_complete else {},
            "not_counted": dict(sorted(macs.not_counted.items())),
        },
    }


def _stored(tensors: list[StoredTensor]) -> dict[str, Any]:
    """Add up the sizes of all initializers."""
    dtypes: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        size = dtypes.setdefault(tensor.dtype, {"count": 0, "bytes": 0})
        size["count"] += 1
        size["bytes"] += tensor.bytes
    largest = sorted(tensors, key=lambda tensor: (-tensor.bytes, tensor.name))[:_LARGEST]
    return {
        "count": len(tensors),
        "bytes": sum(tensor.bytes for tensor in tensors),
        "dtypes": dict(sorted(dtypes.items(), key=lambda item: (-item[1]["bytes"], item[0]))),
        "largest": [tensor.as_json() for tensor in largest],
    }


def _weights(tensors: list[StoredTensor]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors if tensor.dtype not in _NOT_WEIGHTS)


def _tensors(graph: Body) -> dict[str, Any]:
    """Describe all tensors by name, which is unique in a graph and its bodies."""
    bodies = {"": graph}
    for node, inside in graph.walk():
        for attribute, body in node.bodies.items():
            bodies[f"{inside}/{node.label}.{attribute}".lstrip("/")] = body
    tensors: dict[str, Any] = {}
    for inside, body in bodies.items():
        for name in (*body.inputs, *body.initializers, *body.producers, *body.outputs):
            stored, producer = body.initializers.get(name), body.producers.get(name)
            kind = "input" if name in body.inputs else "output" if name in body.outputs else "value"
            tensors[name] = tensors.get(name) or {
                **_port(body, name),
                "kind": "initializer" if stored else kind,
                "bytes": stored.bytes if stored else None,
                "producer": producer.label if producer else None,
                "consumers": [node.label for node in body.consumers.get(name, ())],
                **({"inside": inside} if inside else {}),
            }
    return tensors


def _port(body: Body, name: str) -> dict[str, Any]:
    value = body.value(name)
    shape = None if value is None or value.shape is None else list(value.shape)
    return {"name": name, "dtype": value.dtype if value else None, "shape": shape}


SizesOf = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True)
class Macs:
    """Multiply-accumulates of a graph by operator, and the nodes without a count."""

    by_operator: Counter[str]
    nodes: Counter[str]  # with a count
    not_counted: Counter[str]  # unknown operators and shapes
    loops: int  # counted once, as the number of iterations is unknown

    @property
    def total(self) -> int:
        """Sum over all operators."""
        return sum(self.by_operator.values())

    @property
    def is_complete(self) -> bool:
        """True if nothing is missing from the total."""
        return not (self.not_counted or self.loops)


def _count(model: ModelProto, dims: Mapping[str, int]) -> Macs:
    """Count a model at the sizes ``dims``."""
    return count_macs(plain_model(inline_for_count(model), dims).body)


def inline_for_count(model: ModelProto) -> ModelProto:
    """Inline functions if possible; weights without values are enough to count."""
    if model.functions:
        with suppress(RuntimeError, ValueError):  # no conversion to the model's opset
            return inline_all(without_weights(model))
    return model


def count_macs(body: Body) -> Macs:
    """Count a graph. Loops and both branches of an If count once."""
    macs, loops = Macs(Counter(), Counter(), Counter(), 0), 0
    for node, number in macs_per_node(body):
        if node.bodies:
            loops += node.operator != "If"
        elif number is None:
            macs.not_counted[node.operator] += 1
        elif number:
            macs.by_operator[node.operator] += number
            macs.nodes[node.operator] += 1
    return replace(macs, loops=loops)


def macs_per_node(body: Body) -> list[tuple[PlainNode, int | None]]:
    """Count every node, in the order of ``Body.walk``; None if it is unknown."""
    nodes = [node for node, _ in body.walk()]
    shapes: dict[str, Shape | None] = {}
    for part in (body, *(inner for node in nodes for inner in node.bodies.values())):
        for values in (part.initializers, part.values):
            shapes |= {name: value.shape for name, value in values.items()}

    def sizes(name: str) -> tuple[int, ...]:
        """Look up a numeric shape. Raises: LookupError: it is not completely known."""
        numbers = tuple(size for size in shapes[name] or () if isinstance(size, int))
        if numbers != shapes[name]:
            raise LookupError(name)
        return numbers

    return [(node, None if node.bodies else _node_macs(node, sizes)) for node in nodes]


def _node_macs(node: PlainNode, of: SizesOf) -> int | None:
    count = _COUNTS.get(_own_name(node.operator))
    if count is None:
        is_onnx = "::" not in node.operator or node.operator.startswith("ai.onnx")
        return 0 if is_onnx or _WITHOUT_MACS.fullmatch(node.operator) else None
    try:
        return count(node, of)
    except LookupError:
        return None


def _convolution(node: PlainNode, of: SizesOf) -> int:
    weights = 3 if node.operator.endswith("QLinearConv") else 1
    return math.prod(of(node.outputs[0])) * math.prod(of(node.inputs[weights])[1:])


def _matrix_product(node: PlainNode, of: SizesOf) -> int:
    first = of(node.inputs[0])
    transposed = node.attributes.get("transA", "0") not in ("0", "")
    return math.prod(of(node.outputs[0])) * first[-2 if transposed else -1]


def _einsum(node: PlainNode, of: SizesOf) -> int:
    """Multiply all index sizes, for two operands."""
    terms = node.attributes.get("equation", "").partition("->")[0].replace(" ", "").split(",")
    if len(terms) == 1:
        return 0
    if len(terms) != 2 or not all(re.fullmatch("[A-Za-z]+", term) for term in terms):
        raise LookupError(node.label)
    sizes: dict[str, int] = {}
    for term, name in zip(terms, node.inputs, strict=False):
        sizes.update(zip(term, of(name), strict=False))
    return math.prod(sizes.values())


def _attention(node: PlainNode, of: SizesOf) -> int:
    """Count query-key and weight-value products of ONNX's own operator."""
    keys = of(node.inputs[1])[-2]
    if len(node.inputs) > 4 and node.inputs[4]:  # keys of earlier steps
        keys += of(node.inputs[4])[-2]
    return (math.prod(of(node.inputs[0])) + math.prod(of(node.outputs[0]))) * keys


# operators of ONNX and of ONNX Runtime's optimizer, without their domain
_COUNTS: Mapping[str, Callable[[PlainNode, SizesOf], int]] = {
    **dict.fromkeys(
        ("Conv", "FusedConv", "NhwcFusedConv", "ConvInteger", "QLinearConv", "DeformConv"),
        _convolution,
    ),
    "ConvTranspose": lambda node, of: (
        math.prod(of(node.inputs[0])) * math.prod(of(node.inputs[1])[1:])
    ),
    **dict.fromkeys(
        ("Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulInteger", "QLinearMatMul"),
        _matrix_product,
    ),
    "Einsum": _einsum,
    # weights and recurrent weights, once per step and batch item
    **dict.fromkeys(("LSTM", "GRU", "RNN"), lambda node, of: math.prod(of(node.inputs[0])[:2]) * (
        math.prod(of(node.inputs[1])) + math.prod(of(node.inputs[2]))
    )),
    "Attention": _attention,
}  # fmt: skip
_WITHOUT_MACS = re.compile(
    r"com\.microsoft(\.nchwc)?::(Quick)?(Gelu|FastGelu|BiasGelu|QuickGelu|ReorderInput|"
    r"ReorderOutput|SkipLayerNormalization|LayerNormalization|MaxPool|AveragePool|GlobalMaxPool|"
    r"GlobalAveragePool|Upsample|QLinear\w+|DynamicQuantizeLinear|Dequantize\w*|Quantize\w*)"
)


def _own_name(operator: str) -> str:
    """Strip an operator of the domain of ONNX or ONNX Runtime."""
    domain, _, name = operator.rpartition("::")
    return name if domain in ("", "com.microsoft", "com.microsoft.nchwc") else operator
