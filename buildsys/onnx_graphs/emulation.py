"""Emulation of 16-bit graphs in float32, with 16-bit rounding and range.

ONNX Runtime has few bfloat16 kernels for the CPU. Its float16 kernels compute in float32 without
rounding in between, so values beyond float16's range survive that overflow on a GPU. A float32
graph with every result cast to the type and back computes like a device that accumulates in float32
and rounds once per operator. Explicit casts stay at every optimization level. Accumulation in 16
bits is not emulated.
"""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import all_nodes, subgraphs
from buildsys.onnx_graphs.tensor_types import (
    DTYPES,
    ELEM_TYPES,
    FreshNames,
    element_types,
    rename_outer,
)

_FLOAT = TensorProto.FLOAT
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")


def emulate(model: ModelProto, precision: str) -> ModelProto:
    """Make a float32 graph with the numbers of 16-bit ``model``.

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
                value.type.tensor_type.elem_type = _FLOAT
            elif value.name in self._is_low:
                self._add_cast(value.name, self._in_float(value.name), _FLOAT)
        for node in list(self._graph.node):
            self._rewrite_node(node)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        for tensor in self._graph.initializer:
            if tensor.data_type == self._low:
                tensor.CopyFrom(_in_float32(tensor))
        for value in self._graph.value_info:
            if value.type.tensor_type.elem_type == self._low:
                value.type.tensor_type.elem_type = _FLOAT

    def _rewrite_node(self, node: NodeProto) -> None:
        for index, name in enumerate(node.input):
            node.input[index] = self._renamed.get(name, name)
        rename_outer(node, self._renamed)
        self._nodes.append(node)
        if node.op_type == "Cast":  # cast back to float32
            name = node.output[0]
            if name in self._low_outputs:
                self._add_cast(name, self._in_float(name), _FLOAT)
            elif name in self._is_low:
                node.output[0] = self._fresh.new(f"{name}_{self._dtype}")
                self._add_cast(node.output[0], name, _FLOAT)
            return
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i == self._low:
                attribute.i = _FLOAT
            if attribute.t.data_type == self._low:
                attribute.t.CopyFrom(_in_float32(attribute.t))
        for index, name in enumerate(node.output):
            if name in self._is_low:
                is_output = name in self._low_outputs
                node.output[index] = raw = self._fresh.new(f"{name}_unrounded")
                low = name if is_output else self._fresh.new(f"{name}_{self._dtype}")
                self._add_cast(raw, low, self._low)
                self._add_cast(low, self._in_float(name) if is_output else name, _FLOAT)

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
