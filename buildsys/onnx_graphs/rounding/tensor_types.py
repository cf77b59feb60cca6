"""Element types of tensors and operators."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, shape_inference

from buildsys.onnx_graphs.onnx_file import subgraphs

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}  # precision -> type
ELEM_TYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
NOT_A_TENSOR = -1  # a sequence, an optional, a map
_STORED_IN_PLACE = 1024  # bytes; smaller values can be shapes that the inference needs


def element_types(model: ModelProto) -> dict[str, int]:
    """Return tensor -> known TensorProto data type for the main graph."""
    graph = shape_inference.infer_shapes(_without_weights(model), data_prop=True).graph
    types = {tensor.name: int(tensor.data_type) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type" and value.type.tensor_type.elem_type:
            types[value.name] = value.type.tensor_type.elem_type
        elif kind is not None and kind != "tensor_type":
            types[value.name] = NOT_A_TENSOR
    return types


def schema_of(node: NodeProto, opsets: dict[str, int]) -> defs.OpSchema | None:
    """Return the ONNX schema of a node, None for custom operators."""
    if node.domain not in ("", "ai.onnx"):
        return None
    try:
        return defs.get_schema(node.op_type, opsets.get("ai.onnx", 1), "")
    except defs.SchemaError:
        return None


def input_types(schema: defs.OpSchema, index: int) -> frozenset[str]:
    """Return the types of the input at ``index``, such as ``tensor(float16)``."""
    return frozenset(schema.inputs[min(index, len(schema.inputs) - 1)].types)


def output_types(schema: defs.OpSchema, index: int) -> frozenset[str]:
    """Return the types of the output at ``index``."""
    return frozenset(schema.outputs[min(index, len(schema.outputs) - 1)].types)


def outer_names(node: NodeProto) -> set[str]:
    """Return the tensors captured by an If, Loop or Scan."""
    return {name for body in subgraphs(node) for name in _free_names(body)}


def rename_outer(node: NodeProto, names: dict[str, str]) -> None:
    """Rename the captured tensors of a node's bodies."""
    for body in subgraphs(node):
        for inner in body.node:
            for index, name in enumerate(inner.input):
                inner.input[index] = names.get(name, name)
            rename_outer(inner, names)


def _free_names(graph: GraphProto) -> Iterator[str]:
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        yield from (name for name in node.input if name and name not in known)
        yield from outer_names(node) - known
        known |= set(node.output)
    yield from (value.name for value in graph.output if value.name not in known)


def _without_weights(model: ModelProto) -> ModelProto:
    """Return a copy for type inference, without the values of large initializers."""
    copy = ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions
    )
    for field in ("node", "input", "output", "value_info"):
        getattr(copy.graph, field).extend(getattr(model.graph, field))
    copy.graph.name = model.graph.name
    for tensor in model.graph.initializer:
        stub = copy.graph.initializer.add()
        if len(tensor.raw_data) > _STORED_IN_PLACE:
            stub.name, stub.data_type = tensor.name, tensor.data_type
            stub.dims.extend(tensor.dims)
            stub.data_location = TensorProto.EXTERNAL
        else:
            stub.CopyFrom(tensor)
    return copy
