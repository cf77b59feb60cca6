"""Element types, captured tensors, unused names, assembled outputs and 16-bit emulation."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    defs,
    helper,
    numpy_helper,
    shape_inference,
)

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import (
    STANDARD,
    all_nodes,
    nodes_of,
    ports,
    subgraphs,
    tensors_of,
)
from buildsys.onnx_graphs.quantizers import quantizers

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}  # precision -> type
ELEM_TYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_FLOATS: dict[str, int] = {  # from the fewest digits on
    "bfloat16": TensorProto.BFLOAT16, "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE,
}  # fmt: skip
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")
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
    for node in nodes_of(model):
        if node.op_type == "Cast":
            types |= {attribute.i for attribute in node.attribute if attribute.name == "to"}
    return {name for name, elem_type in _FLOATS.items() if elem_type in types}


def narrowest_float(model: ModelProto) -> str:
    """Find the float type with the fewest digits, float32 without any."""
    types = float_types(model)
    return next((name for name in _FLOATS if name in types), "float32")


def main_float_type(model: ModelProto) -> str:
    """Find the float type of most weights, int8 if values are quantized; empty without weights."""
    if any(node.op_type != "DequantizeLinear" for node in quantizers(model)):
        return "int8"
    counts: Counter[int] = Counter()
    for tensor in tensors_of(model):
        counts[tensor.data_type] += prod(tensor.dims)
    name = max(_FLOATS, key=lambda name: counts[_FLOATS[name]])
    return name if counts[_FLOATS[name]] else ""


def schema_of(node: NodeProto, opsets: dict[str, int]) -> defs.OpSchema | None:
    """Look up the ONNX schema of a node; None for custom operators."""
    if node.domain not in STANDARD:
        return None
    try:
        return defs.get_schema(node.op_type, opsets.get("ai.onnx", 1), "")
    except defs.SchemaError:
        return None


def since_version(node: NodeProto, opset: int) -> int | None:
    """Look up the opset that last changed a node's operator, None for custom ones."""
    schema = schema_of(node, {"ai.onnx": opset})
    return None if schema is None else int(schema.since_version)


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


def output_facts(model: ModelProto, assembled: Iterable[str]) -> dict[str, list[str]]:
    """Collect what comparisons must know: assembled outputs, and those without elements."""
    shapes = {port["name"]: port["shape"] or () for port in ports(model)[1]}
    empty = [name for name, shape in shapes.items() if 0 in shape]
    return {"outputs": sorted(shapes.keys() & set(assembled)), "empty": empty}


def emulate(model: ModelProto, precision: str) -> ModelProto:
    """Make a float32 graph with the numbers of 16-bit ``model``.

    ONNX Runtime has few bfloat16 kernels for the CPU, and its float16 kernels compute in float32
    without rounding in between, so values beyond float16's range survive that overflow on a GPU. A
    float32 graph with every result cast to the type and back computes like a device that
    accumulates in float32 and rounds once per operator. Explicit casts stay at every optimization
    level. Accumulation in 16 bits is not emulated.

    Inputs and outputs keep their types, and all tensors their names. ``model`` has its weights in
    memory. Graphs without tensors of the type are returned unchanged.
    Raises: StageError: the type occurs inside subgraphs or local functions.
    """
    dtype = DTYPES[precision]
    _refuse_hidden_types(model, dtype)
    result = ModelProto()
    result.CopyFrom(model)
    _Emulation(result.graph, dtype, element_types(model)).rewrite()
    return result


class _Emulation:
    """Rewrite of a graph in place.

    ``_renamed`` has the float32 names of inputs and outputs of the 16-bit type.
    """

    def __init__(self, graph: GraphProto, dtype: str, types: dict[str, int]) -> None:
        self._graph, self._dtype, self._low = graph, dtype, ELEM_TYPES[dtype]
        self._is_low = {name for name, elem_type in types.items() if elem_type == self._low}
        self._low_outputs = self._is_low & {value.name for value in graph.output}
        self._fresh = FreshNames(graph)
        self._renamed: dict[str, str] = {}
        self._nodes: list[NodeProto] = []

    def rewrite(self) -> None:
        stored = {tensor.name for tensor in self._graph.initializer}
        for value in self._graph.input:
            if value.name in stored and value.type.tensor_type.elem_type == self._low:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
            elif value.name in self._is_low:
                self._add_cast(value.name, self._in_float(value.name), TensorProto.FLOAT)
        for node in list(self._graph.node):
            self._rewrite_node(node)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        for tensor in self._graph.initializer:
            if tensor.data_type == self._low:
                tensor.CopyFrom(_in_float32(tensor))
        for value in self._graph.value_info:
            if value.type.tensor_type.elem_type == self._low:
                value.type.tensor_type.elem_type = TensorProto.FLOAT

    def _rewrite_node(self, node: NodeProto) -> None:
        for index, name in enumerate(node.input):
            node.input[index] = self._renamed.get(name, name)
        rename_outer(node, self._renamed)
        self._nodes.append(node)
        if node.op_type == "Cast":  # cast back to float32
            name = node.output[0]
            if name in self._low_outputs:
                self._add_cast(name, self._in_float(name), TensorProto.FLOAT)
            elif name in self._is_low:
                node.output[0] = self._fresh.new(f"{name}_{self._dtype}")
                self._add_cast(node.output[0], name, TensorProto.FLOAT)
            return
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i == self._low:
                attribute.i = TensorProto.FLOAT
            if attribute.t.data_type == self._low:
                attribute.t.CopyFrom(_in_float32(attribute.t))
        for index, name in enumerate(node.output):
            if name in self._is_low:
                is_output = name in self._low_outputs
                node.output[index] = raw = self._fresh.new(f"{name}_unrounded")
                low = name if is_output else self._fresh.new(f"{name}_{self._dtype}")
                self._add_cast(raw, low, self._low)
                self._add_cast(low, self._in_float(name) if is_output else name, TensorProto.FLOAT)

    def _in_float(self, name: str) -> str:
        self._renamed[name] = self._fresh.new(f"{name}_float32")
        return self._renamed[name]

    def _add_cast(self, source: str, target: str, elem_type: int) -> None:
        self._nodes.append(helper.make_node("Cast", [source], [target], to=elem_type))


def _in_float32(tensor: TensorProto) -> TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)


def _refuse_hidden_types(model: ModelProto, dtype: str) -> None:
    owners = (model.graph, *model.functions)
    graphs = [body for owner in owners for node in all_nodes(owner) for body in subgraphs(node)]
    graphs += [GraphProto(name=function.name, node=function.node) for function in model.functions]
    for graph in graphs:
        ports = (*graph.input, *graph.output, *graph.value_info)
        types = {port.type.tensor_type.elem_type for port in ports}
        types |= {tensor.data_type for tensor in graph.initializer}
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            is_type = attribute.name in _TYPE_ATTRIBUTES
            types.add(attribute.i if is_type else attribute.t.data_type)
        if ELEM_TYPES[dtype] in types:
            raise StageError(
                f"the inner graph {graph.name} computes in {dtype}, which cannot be emulated on"
                " the CPU",
                "choose another precision",
            )
