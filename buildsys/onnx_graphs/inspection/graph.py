"""ONNX models as plain data with inferred shapes, without the values of their weights."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from blake3 import blake3
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from buildsys.onnx_graphs.onnx_file import (
    all_nodes,
    content_of,
    dtype_name,
    operator_name,
    opsets,
    outside_bytes,
    port_of,
    subgraphs,
)
from buildsys.onnx_graphs.tensor_types import without_weights

CONSTANT = "Constant"
TIMES = "\N{MULTIPLICATION SIGN}"
# sizes: a number, the name of a dynamic dimension, None: unknown
Shape = tuple[int | str | None, ...]
_SHOWN_ELEMENTS = 8
_LONGEST = 80
_INVENTED = "unk__"  # prefix of dimensions named by shape inference


@dataclass(frozen=True)
class Value:
    """Known type and shape of a tensor."""

    dtype: str
    shape: Shape | None

    def __str__(self) -> str:
        """Format as ``float32 [batch, 64, 56, 56]``."""
        return f"{self.dtype} {shape_text(self.shape)}"


@dataclass(frozen=True)
class StoredTensor(Value):
    """A stored tensor. ``digest`` covers type, shape and values."""

    shape: tuple[int, ...]
    name: str
    bytes: int
    digest: str = ""

    def as_json(self) -> dict[str, Any]:
        """Convert name, dtype, shape and size."""
        shape = list(self.shape)
        return {"name": self.name, "dtype": self.dtype, "shape": shape, "bytes": self.bytes}


@dataclass(frozen=True, eq=False)
class PlainNode:
    """One node; ``inputs`` has "" for an omitted optional input."""

    name: str  # "" where the exporter gave none
    operator: str  # "Conv", or "my.domain::Op" outside ONNX's own domain
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)  # as text
    bodies: "Mapping[str, Body]" = field(default_factory=dict)  # of If, Loop and Scan, by attribute
    digests: tuple[str, ...] = ()  # of tensors among its attributes

    @property
    def label(self) -> str:
        """Its name, or else its first output."""
        return self.name or next((name for name in self.outputs if name), self.operator)

    @property
    def reads(self) -> tuple[str, ...]:
        """Its inputs, including tensors captured by its bodies."""
        outer = (name for body in self.bodies.values() for name in body.captured)
        return tuple(dict.fromkeys(name for name in (*self.inputs, *outer) if name))


@dataclass(frozen=True, eq=False)
class Body:
    """A graph, a local function, or the body of an If, Loop or Scan."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[PlainNode, ...]
    initializers: Mapping[str, StoredTensor] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)

    @cached_property
    def producers(self) -> dict[str, PlainNode]:
        """Tensor -> its producer."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> dict[str, list[PlainNode]]:
        """Tensor -> its consumers, in the order of the graph."""
        consumers: dict[str, list[PlainNode]] = {}
        for node in self.nodes:
            for name in node.reads:
                consumers.setdefault(name, []).append(node)
        return consumers

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """Tensors from the enclosing graph."""
        own = {"", *self.inputs, *self.initializers, *self.producers}
        reads = (name for node in self.nodes for name in node.reads)
        return tuple(dict.fromkeys(name for name in (*reads, *self.outputs) if name not in own))

    @cached_property
    def stored(self) -> dict[str, str]:
        """Initializer or output of a Constant -> its digest, "" if unknown."""
        digests = {}
        for node in self.nodes:
            if node.operator == CONSTANT:
                digests.update(dict.fromkeys(filter(None, node.outputs), "".join(node.digests)))
        return digests | {name: tensor.digest for name, tensor in self.initializers.items()}

    @property
    def operators(self) -> Counter[str]:
        """Operator -> count, including bodies."""
        return Counter(node.operator for node, _ in self.walk())

    def value(self, name: str) -> Value | None:
        """Look up type and shape of a tensor, None if they are unknown."""
        return self.values.get(name) or self.initializers.get(name)

    def walk(self, inside: str = "") -> Iterator[tuple[PlainNode, str]]:
        """Yield all nodes with the path of their body, e.g. ``loop.body``, after its node."""
        for node in self.nodes:
            yield node, inside
            for attribute, body in node.bodies.items():
                yield from body.walk(f"{inside}/{node.label}.{attribute}".lstrip("/"))


@dataclass(frozen=True, eq=False)
class PlainModel:
    """An ONNX file without its weights."""

    body: Body
    ir_version: int
    producer: str
    opsets: Mapping[str, int]
    functions: Mapping[str, Body] = field(default_factory=dict)  # "my.domain::Op" -> its nodes

    @property
    def initializers(self) -> list[StoredTensor]:
        """All initializers, including those of bodies."""
        inner = (body for node, _ in self.body.walk() for body in node.bodies.values())
        return [tensor for body in (self.body, *inner) for tensor in body.initializers.values()]

    @property
    def operators(self) -> dict[str, int]:
        """Operator -> count with bodies and local functions, by falling count."""
        counts = sum((body.operators for body in self.functions.values()), self.body.operators)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def shape_text(shape: Shape | None) -> str:
    """Format as ``[batch, 3, ?]``, or ``[…]`` for an unknown rank."""
    if shape is None:
        return "[…]"
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def plain_model(
    model: ModelProto, dims: Mapping[str, int] | None = None, data: Path | None = None
) -> PlainModel:
    """Convert a model with shapes at the sizes of ``dims``.

    ``data`` has the external values, for their digests.
    """
    shaped = _with_shapes(model, dims or {})
    tensors = [*model.graph.initializer, *(t.values for t in model.graph.sparse_initializer)]
    stored = {tensor.name: _stored(tensor, data) for tensor in tensors}
    producer = f"{model.producer_name} {model.producer_version}".strip()
    functions = {
        f"{function.domain}::{function.name}".removeprefix("::"): Body(
            tuple(function.input), tuple(function.output), tuple(map(_node, function.node))
        )
        for function in model.functions
    }
    body = _body(shaped.graph, stored)
    return PlainModel(body, model.ir_version, producer, opsets(model), functions)


def _with_shapes(model: ModelProto, dims: Mapping[str, int]) -> ModelProto:
    """Copy a model without large weights, fix its dimensions and infer its shapes."""
    copy = without_weights(model)
    bodies = (body for node in all_nodes(copy.graph) for body in subgraphs(node))
    for graph in (copy.graph, *bodies) if dims else ():
        for value in (*graph.input, *graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in dims:
                    dim.dim_value = dims[dim.dim_param]
        # drop shapes with names; types of custom operators cannot be inferred, so all types stay
        for value in graph.value_info:
            if any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim):
                value.type.tensor_type.ClearField("shape")
    for value in copy.graph.output if dims else ():  # inference replaces invented names
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.Clear()
    try:
        return onnx.shape_inference.infer_shapes(copy, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return copy  # types of a later ONNX, or contradictory shapes


def _body(graph: GraphProto, stored: Mapping[str, StoredTensor] | None = None) -> Body:
    if stored is None:
        stored = {tensor.name: _stored(tensor) for tensor in graph.initializer}
    values = {}
    for port in map(port_of, (*graph.value_info, *graph.input, *graph.output)):
        sizes = port["shape"]
        shape = sizes and tuple(None if str(s).startswith(_INVENTED) else s for s in sizes)
        values[port["name"]] = Value(port["dtype"], shape if shape is None else tuple(shape))
    return Body(
        inputs=tuple(value.name for value in graph.input if value.name not in stored),
        outputs=tuple(value.name for value in graph.output),
        nodes=tuple(map(_node, graph.node)),
        initializers=stored,
        values=values,
    )


def _stored(tensor: TensorProto, data: Path | None = None) -> StoredTensor:
    dtype = dtype_name(tensor.data_type) if tensor.data_type else "undefined"
    size = outside_bytes(tensor) or len(tensor.raw_data) or tensor.ByteSize()
    return StoredTensor(dtype, tuple(tensor.dims), tensor.name, size, _digest(tensor, data))


def _digest(tensor: TensorProto, data: Path | None) -> str:
    """Digest type, shape and values; "" for external values without their file."""
    if tensor.data_location == TensorProto.EXTERNAL and data is None:
        return ""
    digest = blake3(f"{tensor.data_type}{list(tensor.dims)}".encode())
    digest.update(content_of(tensor, data or Path()).data or b"\0".join(tensor.string_data))
    if tensor.data_type and not (tensor.raw_data or tensor.string_data or tensor.external_data):
        digest.update(numpy_helper.to_array(tensor).tobytes())
    return digest.hexdigest()


def _node(node: NodeProto) -> PlainNode:
    bodies: dict[str, Body] = {}
    digests: list[str] = []
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            bodies[attribute.name] = _body(attribute.g)
        elif attribute.type == AttributeProto.TENSOR:
            digests.append(_digest(attribute.t, None))
    return PlainNode(
        name=node.name,
        operator=operator_name(node),
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes={attribute.name: _attribute_text(attribute) for attribute in node.attribute},
        bodies=bodies,
        digests=tuple(digests),
    )


def _attribute_text(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        text = str(_stored(value))
        if math.prod(value.dims) <= _SHOWN_ELEMENTS and value.data_type:
            text += f" = {numpy_helper.to_array(value).tolist()}"
    elif isinstance(value, GraphProto):
        return "graph"
    else:
        is_list = not isinstance(value, bytes) and hasattr(value, "__len__")
        entries = [_entry_text(entry) for entry in (value if is_list else [value])]
        text = f"[{', '.join(entries)}]" if is_list else entries[0]
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _entry_text(entry: Any) -> str:
    if isinstance(entry, bytes):
        return entry.decode(errors="replace")
    return f"{entry:g}" if isinstance(entry, float) else str(entry)
