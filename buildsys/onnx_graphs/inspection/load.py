"""Reader of ONNX files into plain data, without reading large weights."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import onnx
from blake3 import blake3
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    numpy_helper,
)

from buildsys.onnx_graphs.inspection.plain_graph import (
    Body,
    Function,
    PlainModel,
    PlainNode,
    Shape,
    StoredTensor,
    Value,
)
from buildsys.onnx_graphs.onnx_file import (
    dtype_name,
    operator_name,
    opsets,
    port_of,
    tensors_of,
)

Digest = Callable[[TensorProto], str]
_LARGE = 1024  # bytes; shape inference may need smaller tensors
_SHOWN_ELEMENTS = 8
_LONGEST = 80
_INVENTED = "unk__"  # prefix of dimensions named by shape inference
_DIGEST = "digest"  # our entry in the external data of a tensor
_NOT_SHOWN = (AttributeProto.TENSORS, AttributeProto.GRAPHS, AttributeProto.SPARSE_TENSOR)
_HALF_BYTES = (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1)


def drop_weights(model: ModelProto, digest: Digest | None = None) -> None:
    """Remove the values of all large tensors; types and shapes stay.

    The ``digest`` of removed and external values is kept in the tensor.
    """
    for tensor in tensors_of(model):
        size = stored_bytes(tensor)  # ByteSize() would serialize the message
        if tensor.data_location != TensorProto.EXTERNAL and size < _LARGE:
            continue
        entries = {"length": str(size), _DIGEST: digest(tensor) if digest else ""}
        name, dtype, dims = tensor.name, tensor.data_type, list(tensor.dims)
        tensor.Clear()
        tensor.name, tensor.data_type, tensor.data_location = name, dtype, TensorProto.EXTERNAL
        tensor.dims.extend(dims)
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)


def plain_model(model: ModelProto) -> PlainModel:
    """Return a model as plain data.

    Call ``drop_weights`` first: all inline values are read.
    """
    producer = f"{model.producer_name} {model.producer_version}".strip()
    functions = tuple(
        Function(
            name=f"{function.domain}::{function.name}" if function.domain else function.name,
            inputs=tuple(function.input),
            outputs=tuple(function.output),
            nodes=tuple(map(_node, function.node)),
            opsets={entry.domain or "ai.onnx": entry.version for entry in function.opset_import},
        )
        for function in model.functions
    )
    return PlainModel(_body(model.graph), model.ir_version, producer, opsets(model), functions)


def stored_bytes(tensor: TensorProto) -> int:
    """Return the size of inline or external values without reading them."""
    if tensor.data_location == TensorProto.EXTERNAL:
        length = next((entry.value for entry in tensor.external_data if entry.key == "length"), "")
        if length.isdecimal():
            return int(length)
    if tensor.data_type == TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    try:
        bits = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
    except (KeyError, TypeError):  # a type of a later ONNX, or none at all
        bits = 0
    bits = 4 if tensor.data_type in _HALF_BYTES else bits
    return int(math.prod(tensor.dims) * bits + 7) // 8


@contextmanager
def content_digests(data: Path | None) -> Iterator[Digest]:
    """Yield a function for digests of type, shape and values."""
    mapped: mmap.mmap | None = None

    def digest(tensor: TensorProto) -> str:
        if tensor.data_location != TensorProto.EXTERNAL:
            return _digest(tensor)
        if mapped is None:  # missing file
            return ""
        begin = int(next((e.value for e in tensor.external_data if e.key == "offset"), 0))
        with memoryview(mapped) as view, view[begin : begin + stored_bytes(tensor)] as values:
            return _digest(tensor, values)

    with ExitStack() as stack:
        if data is not None and data.is_file() and data.stat().st_size:
            file = stack.enter_context(data.open("rb"))
            mapped = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        yield digest


def _digest(tensor: TensorProto, values: bytes | memoryview | None = None) -> str:
    """Return the digest of type, shape and values, by default the inline ones."""
    if values is None:
        if not tensor.data_type:
            return ""
        if tensor.data_type == TensorProto.STRING:
            values = b"\0".join(tensor.string_data)
        else:
            values = tensor.raw_data or numpy_helper.to_array(tensor).tobytes()
    found = blake3(f"{tensor.data_type}{list(tensor.dims)}".encode())
    found.update(values)
    return found.hexdigest()


def _body(graph: GraphProto) -> Body:
    stored = {tensor.name: _stored(tensor) for tensor in graph.initializer}
    for sparse in graph.sparse_initializer:
        one = _stored(sparse.values)
        stored[one.name] = StoredTensor(
            one.name, f"sparse {one.dtype}", tuple(sparse.dims), one.bytes, one.digest
        )
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
    if tensor.data_location == TensorProto.EXTERNAL:
        digest = next((entry.value for entry in tensor.external_data if entry.key == _DIGEST), "")
    else:
        digest = _digest(tensor)
    return StoredTensor(tensor.name, dtype, tuple(tensor.dims), stored_bytes(tensor), digest)


def _attribute_text(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    if attribute.type == AttributeProto.GRAPH:
        return f"{len(attribute.g.node)} nodes"
    if attribute.type in _NOT_SHOWN:
        return str(AttributeProto.AttributeType.Name(attribute.type)).lower()
    if attribute.type == AttributeProto.TENSOR:
        text = _tensor_text(attribute.t)
    else:
        value = onnx.helper.get_attribute_value(attribute)
        is_list = not isinstance(value, bytes) and hasattr(value, "__len__")
        text = f"[{', '.join(map(_entry, value))}]" if is_list else _entry(value)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _entry(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tensor_text(tensor: TensorProto) -> str:
    if not tensor.data_type:
        return "undefined"
    text = f"{dtype_name(tensor.data_type)} {list(tensor.dims)}"
    if math.prod(tensor.dims) > _SHOWN_ELEMENTS or tensor.data_location == TensorProto.EXTERNAL:
        return text
    return f"{text} = {numpy_helper.to_array(tensor).tolist()}"
