"""Element types, captured tensors, unused names and assembled outputs of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, shape_inference

from buildsys.onnx_graphs.onnx_file import all_nodes, subgraphs, tensors_of

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}  # precision -> type
ELEM_TYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_FLOATS: dict[str, int] = {  # from the fewest digits on
    "bfloat16": TensorProto.BFLOAT16, "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE,
}  # fmt: skip
NOT_A_TENSOR = -1  # a sequence, an optional, a map
_STORED_IN_PLACE = 1024  # bytes; smaller values can be shapes that the inference needs
_ASSEMBLING = ("Concat", "ScatterND", "ScatterElements")
# the layers before these are one computation: what is joined there is not a part of the output
_CONTRACTING = (
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul",
    "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN",
)  # fmt: skip
_FIRST_INPUT_ONLY = (  # the others are indices, shapes and sizes
    "Expand", "Gather", "GatherElements", "GatherND", "Pad", "Reshape", "Resize", "Slice", "Split",
    "Squeeze", "Tile", "TopK", "Unsqueeze",
)  # fmt: skip


def without_weights(model: ModelProto) -> ModelProto:
    """Copy a model without the values of large initializers, which shape inference skips."""
    copy = ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions
    )
    copy.graph.name = model.graph.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(copy.graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > _STORED_IN_PLACE or tensor.external_data:
            copy.graph.initializer.add(
                name=tensor.name, data_type=tensor.data_type, dims=tensor.dims,
                data_location=TensorProto.EXTERNAL,
            )  # fmt: skip
        else:
            copy.graph.initializer.add().CopyFrom(tensor)
    return copy


def element_types(model: ModelProto) -> dict[str, int]:
    """Infer tensor -> known TensorProto data type for the main graph."""
    graph = shape_inference.infer_shapes(without_weights(model), data_prop=True).graph
    types = {tensor.name: int(tensor.data_type) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type" and value.type.tensor_type.elem_type:
            types[value.name] = value.type.tensor_type.elem_type
        elif kind is not None and kind != "tensor_type":
            types[value.name] = NOT_A_TENSOR
    return types


def float_types(model: ModelProto) -> set[str]:
    """Collect the float types of a graph's ports, constants and casts."""
    types = {tensor.data_type for tensor in tensors_of(model)}
    bodies = [body for node in all_nodes(model.graph) for body in subgraphs(node)]
    for graph in (model.graph, *bodies):
        types |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    for node in (node for owner in (model.graph, *model.functions) for node in all_nodes(owner)):
        if node.op_type == "Cast":
            types |= {attribute.i for attribute in node.attribute if attribute.name == "to"}
    return {name for name, elem_type in _FLOATS.items() if elem_type in types}


def narrowest_float(model: ModelProto) -> str:
    """Find the float type with the fewest digits, float32 without any."""
    types = float_types(model)
    return next((name for name in _FLOATS if name in types), "float32")


def main_float_type(model: ModelProto) -> str:
    """Find the float type of most weights; empty without weights."""
    counts: Counter[int] = Counter()
    for tensor in tensors_of(model):
        counts[tensor.data_type] += prod(tensor.dims)
    name = max(_FLOATS, key=lambda name: counts[_FLOATS[name]])
    return name if counts[_FLOATS[name]] else ""


def schema_of(node: NodeProto, opsets: dict[str, int]) -> defs.OpSchema | None:
    """Look up the ONNX schema of a node; None for custom operators."""
    if node.domain not in ("", "ai.onnx"):
        return None
    try:
        return defs.get_schema(node.op_type, opsets.get("ai.onnx", 1), "")
    except defs.SchemaError:
        return None


def types_at(ports: Sequence[defs.OpSchema.FormalParameter], index: int) -> frozenset[str]:
    """List the types of an operator's input or output, such as ``tensor(float16)``."""
    return frozenset(ports[min(index, len(ports) - 1)].types)


def outer_names(node: NodeProto) -> set[str]:
    """List the tensors captured by an If, Loop or Scan."""
    captured: set[str] = set()
    for body in subgraphs(node):
        defined = {"", *(value.name for value in (*body.input, *body.initializer))}
        for inner in body.node:
            captured |= {*inner.input, *outer_names(inner)} - defined
            defined.update(inner.output)
        captured.update(value.name for value in body.output if value.name not in defined)
    return captured


def rename_outer(node: NodeProto, names: Mapping[str, str]) -> None:
    """Rename the captured tensors of a node's bodies."""
    for body in subgraphs(node):
        rename_uses(body, names)
        for value in body.output:  # a branch may return a captured tensor as it is
            value.name = names.get(value.name, value.name)


def rename_uses(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Let nodes read other tensors, including subgraphs; node outputs keep their names."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        rename_outer(node, names)


class FreshNames:
    """Generator of unused names in a graph and its subgraphs."""

    def __init__(self, graph: GraphProto) -> None:
        self._taken = {entry.name for entry in (*graph.input, *graph.output, *graph.initializer)}
        for node in all_nodes(graph):
            self._taken.update((node.name, *node.input, *node.output))

    def new(self, base: str) -> str:
        """Make a name unused, with a numeric suffix if it is taken."""
        name, number = base, 1
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name


def assembled_outputs(model: ModelProto) -> list[str]:
    """List the outputs made of parts of unlike meaning, such as boxes and scores.

    They have a concatenation or scatter after their last contraction.
    """
    producers = {name: node for node in model.graph.node for name in node.output if name}
    assembled = []
    for output in model.graph.output:
        pending, seen = [output.name], set()
        while pending:
            node = producers.get(name := pending.pop())
            if node is None or name in seen or node.op_type in _CONTRACTING:
                continue
            seen.add(name)
            if node.op_type in _ASSEMBLING and len(node.input) > 1:
                assembled.append(output.name)
                break
            pending += node.input[:1] if node.op_type in _FIRST_INPUT_ONLY else node.input
    return assembled
