"""ONNX models as plain data with inferred shapes, without reading large weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from blake3 import blake3
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

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
    all_nodes,
    dtype_name,
    operator_name,
    opsets,
    port_of,
    ports,
    subgraphs,
    tensors_of,
)

_LARGE = 1024  # bytes; shape inference may need smaller tensors
_SHOWN_ELEMENTS = 8
_LONGEST = 80
_INVENTED = "unk__"  # prefix of dimensions named by shape inference
_DIGEST = "digest"  # our entry in the external data of a tensor
_NOT_SHOWN = (AttributeProto.TENSORS, AttributeProto.GRAPHS, AttributeProto.SPARSE_TENSOR)
_HALF_BYTES = (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1)


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
        size = stored_bytes(tensor)  # ByteSize() would serialize the message
        is_external = tensor.data_location == TensorProto.EXTERNAL
        if not is_external and size < _LARGE:
            continue
        digest = ""
        if with_digests and not is_external:
            digest = _digest(tensor)
        elif with_digests and mapped is not None:
            begin = int({e.key: e.value for e in tensor.external_data}.get("offset", 0))
            digest = _digest(tensor, mapped[begin : begin + size])
        name, dtype, dims = tensor.name, tensor.data_type, list(tensor.dims)
        tensor.Clear()
        tensor.name, tensor.data_type, tensor.data_location = name, dtype, TensorProto.EXTERNAL
        tensor.dims.extend(dims)
        tensor.external_data.add(key="length", value=str(size))
        tensor.external_data.add(key=_DIGEST, value=digest)


def with_shapes(model: ModelProto) -> ModelProto:
    """Infer the shapes of a model, which stays unchanged if inference fails.

    Inference fails on types of a later ONNX and on contradictory shapes. Large weights are removed.
    """
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return model


def with_sizes(model: ModelProto, dims: Mapping[str, int]) -> ModelProto:
    """Fix the dynamic dimensions of a model, and infer its shapes.

    Dimensions that ``dims`` does not name stay dynamic.
    """
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


def input_dims(model: ModelProto) -> list[str]:
    """List the dynamic dimensions of the inputs."""
    sizes = (size for port in ports(model)[0] for size in port["shape"] or ())
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str)))


def plain_model(model: ModelProto) -> PlainModel:
    """Convert a model to plain data.

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
    """Compute the size of inline or external values without reading them."""
    if tensor.data_location == TensorProto.EXTERNAL:
        length = {e.key: e.value for e in tensor.external_data}.get("length", "")
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
        tensor = _stored(sparse.values)
        kind, dims = f"sparse {tensor.dtype}", tuple(sparse.dims)
        stored[tensor.name] = replace(tensor, dtype=kind, shape=dims)
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
        digest = {e.key: e.value for e in tensor.external_data}.get(_DIGEST, "")
    else:
        digest = _digest(tensor)
    return StoredTensor(dtype, tuple(tensor.dims), tensor.name, stored_bytes(tensor), digest)


def _attribute_text(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    if attribute.type == AttributeProto.GRAPH:
        return f"{len(attribute.g.node)} nodes"
    if attribute.type in _NOT_SHOWN:
        return str(AttributeProto.AttributeType.Name(attribute.type)).lower()
    if attribute.type == AttributeProto.TENSOR:
        tensor = attribute.t
        text = "undefined"
        if tensor.data_type:
            text = f"{dtype_name(tensor.data_type)} {list(tensor.dims)}"
            is_short = math.prod(tensor.dims) <= _SHOWN_ELEMENTS
            if is_short and tensor.data_location != TensorProto.EXTERNAL:
                text += f" = {numpy_helper.to_array(tensor).tolist()}"
    else:
        value = onnx.helper.get_attribute_value(attribute)
        is_list = not isinstance(value, bytes) and hasattr(value, "__len__")
        entries = []
        for entry in value if is_list else [value]:
            if isinstance(entry, bytes):
                entries.append(entry.decode(errors="replace"))
            else:
                entries.append(f"{entry:g}" if isinstance(entry, float) else str(entry))
        text = f"[{', '.join(entries)}]" if is_list else entries[0]
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
