"""ONNX models as plain data with inferred shapes, without their large weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from blake3 import blake3
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from buildsys.onnx_graphs.onnx_file import (
    all_nodes,
    dtype_name,
    operator_name,
    opsets,
    port_of,
    subgraphs,
    tensors_of,
)

CONSTANT = "Constant"
TIMES = "\N{MULTIPLICATION SIGN}"
# sizes: a number, the name of a dynamic dimension, None: unknown
Shape = tuple[int | str | None, ...]
_LARGE = 1024  # bytes; shape inference may need smaller tensors
_SHOWN_ELEMENTS = 8
_LONGEST = 80
_INVENTED = "unk__"  # prefix of dimensions named by shape inference
_DIGEST = "digest"  # our entry in the external data of a tensor
_NOT_SHOWN = (
    AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.TENSORS,
    AttributeProto.SPARSE_TENSOR, AttributeProto.TYPE_PROTO,
)  # fmt: skip


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
    bodies: Mapping[str, Body] = field(default_factory=dict)  # of If, Loop and Scan, by attribute
    constants: tuple[StoredTensor, ...] = ()  # tensors among its attributes

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
                digest = node.constants[0].digest if node.constants else ""
                digests.update(dict.fromkeys(filter(None, node.outputs), digest))
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


def drop_weights(
    model: ModelProto, *, with_digests: bool = False, data: Path | None = None
) -> None:
    """Remove the values of all large tensors; types and shapes stay.

    ``with_digests`` keeps digests of their contents in the tensors; ``data`` has external values.
    """
    mapped: memoryview | None = None
    if with_digests and data is not None and data.is_file() and data.stat().st_size:
        mapped = np.memmap(data, np.uint8, "r").data
    for tensor in tensors_of(model):
        size = _stored_bytes(tensor)  # ByteSize() would serialize the message
        is_external = tensor.data_location == TensorProto.EXTERNAL
        if not is_external and size < _LARGE:
            continue
        digest = ""
        if with_digests and not is_external:
            digest = _digest(tensor)
        elif with_digests and mapped is not None:
            begin = int(_external(tensor).get("offset", 0))
            digest = _digest(tensor, mapped[begin : begin + size])
        name, dtype, dims = tensor.name, tensor.data_type, list(tensor.dims)
        tensor.Clear()
        tensor.name, tensor.data_type, tensor.data_location = name, dtype, TensorProto.EXTERNAL
        tensor.dims.extend(dims)
        tensor.external_data.add(key="length", value=str(size))
        tensor.external_data.add(key=_DIGEST, value=digest)


def with_shapes(model: ModelProto) -> ModelProto:
    """Infer the shapes of a model without large weights; it stays unchanged if that fails."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return model  # types of a later ONNX, or contradictory shapes


def with_sizes(model: ModelProto, dims: Mapping[str, int]) -> ModelProto:
    """Fix the dynamic dimensions that ``dims`` names, and infer the shapes of a model."""
    sized = ModelProto()
    sized.CopyFrom(model)
    bodies = (body for node in all_nodes(sized.graph) for body in subgraphs(node))
    for graph in (sized.graph, *bodies):
        for value in (*graph.input, *graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in dims:
                    dim.dim_value = dims[dim.dim_param]
        # drop shapes with names; types of custom operators cannot be inferred, so all types stay
        for value in graph.value_info:
            if any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim):
                value.type.tensor_type.ClearField("shape")
    for value in sized.graph.output:  # inference replaces names that the exporter invented
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.Clear()
    return with_shapes(sized)


def plain_model(model: ModelProto) -> PlainModel:
    """Convert a model to plain data.

    Call ``drop_weights`` first: all inline values are read.
    """
    producer = f"{model.producer_name} {model.producer_version}".strip()
    functions = {
        f"{function.domain}::{function.name}".removeprefix("::"): Body(
            tuple(function.input), tuple(function.output), tuple(map(_node, function.node))
        )
        for function in model.functions
    }
    return PlainModel(_body(model.graph), model.ir_version, producer, opsets(model), functions)


def _external(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _stored_bytes(tensor: TensorProto) -> int:
    """Compute the size of inline or external values without reading them."""
    if tensor.data_location == TensorProto.EXTERNAL:
        length = _external(tensor).get("length", "")
        if length.isdecimal():
            return int(length)
    if tensor.data_type == TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    try:
        bits = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
    except (KeyError, TypeError):  # a type of a later ONNX, or none at all
        bits = 0
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1):
        bits = 4
    return int(math.prod(tensor.dims) * bits + 7) // 8


def _digest(tensor: TensorProto, values: bytes | memoryview | None = None) -> str:
    """Digest type, shape and (by default inline) values."""
    if values is None:
        if not tensor.data_type:
            return ""
        if tensor.data_type == TensorProto.STRING:
            values = b"\0".join(tensor.string_data)
        else:
            values = tensor.raw_data or numpy_helper.to_array(tensor).tobytes()
    digest = blake3(f"{tensor.data_type}{list(tensor.dims)}".encode())
    digest.update(values)
    return digest.hexdigest()


def _body(graph: GraphProto) -> Body:
    stored = {tensor.name: _stored(tensor) for tensor in graph.initializer}
    for sparse in graph.sparse_initializer:
        stored[sparse.values.name] = _stored(sparse.values)
    values = {}
    for port in map(port_of, (*graph.value_info, *graph.input, *graph.output)):
        shape: Shape | None = None
        if port["shape"] is not None:
            shape = tuple(
                None if str(size).startswith(_INVENTED) else size for size in port["shape"]
            )
        values[port["name"]] = Value(port["dtype"], shape)
    return Body(
        inputs=tuple(value.name for value in graph.input if value.name not in stored),
        outputs=tuple(value.name for value in graph.output),
        nodes=tuple(map(_node, graph.node)),
        initializers=stored,
        values=values,
    )


def _node(node: NodeProto) -> PlainNode:
    bodies: dict[str, Body] = {}
    constants: list[StoredTensor] = []
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            bodies[attribute.name] = _body(attribute.g)
        for index, graph in enumerate(attribute.graphs):
            bodies[f"{attribute.name}[{index}]"] = _body(graph)
        single = attribute.type == AttributeProto.TENSOR
        constants += map(_stored, [attribute.t] if single else attribute.tensors)
    return PlainNode(
        name=node.name,
        operator=operator_name(node),
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes={attribute.name: _attribute_text(attribute) for attribute in node.attribute},
        bodies=bodies,
        constants=tuple(constants),
    )


def _stored(tensor: TensorProto) -> StoredTensor:
    dtype = dtype_name(tensor.data_type) if tensor.data_type else "undefined"
    is_external = tensor.data_location == TensorProto.EXTERNAL
    digest = _external(tensor).get(_DIGEST, "") if is_external else _digest(tensor)
    return StoredTensor(dtype, tuple(tensor.dims), tensor.name, _stored_bytes(tensor), digest)


def _attribute_text(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    if attribute.type == AttributeProto.TENSOR:
        text = str(_stored(attribute.t))
        is_short = math.prod(attribute.t.dims) <= _SHOWN_ELEMENTS and attribute.t.data_type
        if is_short and attribute.t.data_location != TensorProto.EXTERNAL:
            text += f" = {numpy_helper.to_array(attribute.t).tolist()}"
    elif attribute.type in _NOT_SHOWN:
        return str(AttributeProto.AttributeType.Name(attribute.type)).lower()
    else:
        value = onnx.helper.get_attribute_value(attribute)
        is_list = not isinstance(value, bytes) and hasattr(value, "__len__")
        entries = [_entry_text(entry) for entry in (value if is_list else [value])]
        text = f"[{', '.join(entries)}]" if is_list else entries[0]
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _entry_text(entry: Any) -> str:
    if isinstance(entry, bytes):
        return entry.decode(errors="replace")
    return f"{entry:g}" if isinstance(entry, float) else str(entry)
