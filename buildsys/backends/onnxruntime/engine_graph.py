"""Facts of a graph saved by ONNX Runtime."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from buildsys.backends.interface import Figures, Options, shares
from buildsys.errors import CheckFailed
from buildsys.onnx_graphs.graph_reader import read_graph
from buildsys.onnx_graphs.onnx_file import dtype_name

_INDEX_OPERATORS = ("Shape", "Size", "ArgMax", "ArgMin", "NonZero")
_BOOL_OPERATORS = (
    "And", "Or", "Xor", "Not", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
    "IsNaN", "IsInf",
)  # fmt: skip
_CONDITIONAL_OPERATORS = ("Where", "If", "Loop")  # their type is not that of their first input


def graph_facts(model_file: Path) -> Figures:
    """Collect a graph's tensors, operators, and shares of types."""
    model = onnx.load(str(model_file), load_external_data=False)
    nodes = Counter(
        f"{node.domain}:{node.op_type}" if node.domain else node.op_type
        for node in model.graph.node
    )
    weights: Counter[str] = Counter()
    for initializer in model.graph.initializer:
        itemsize = int(helper.tensor_dtype_to_np_dtype(initializer.data_type).itemsize)
        weights[_type_name(initializer.data_type)] += math.prod(initializer.dims) * itemsize
    return {
        "inputs": [_tensor_facts(value) for value in model.graph.input],
        "outputs": [_tensor_facts(value) for value in model.graph.output],
        "layers": dict(sorted(nodes.items())),
        "precision_shares": {
            "layers": shares(_node_types(model.graph)),
            "weights": shares(weights),
        },
    }


def _node_types(graph: Any) -> Counter[str]:
    """Count nodes by the type of their first output.

    A saved graph has no types for its inner tensors, and ONNX cannot infer them across ONNX
    Runtime's own operators, so they are derived from Casts and weights.
    """
    types: dict[str, int] = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for values in (graph.input, graph.value_info, graph.output):
        types.update({value.name: value.type.tensor_type.elem_type for value in values})
    counts: Counter[str] = Counter()
    for node in graph.node:
        dtype = types.get(node.output[0]) or _output_type(node, types)
        types.update({name: dtype for name in node.output if name not in types})
        counts[_type_name(dtype)] += 1
    return counts


def _output_type(node: Any, types: Mapping[str, int]) -> int:
    if node.op_type in _INDEX_OPERATORS:
        return int(TensorProto.INT64)
    if node.op_type in _BOOL_OPERATORS:
        return int(TensorProto.BOOL)
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to":
            return int(attribute.i)
        if attribute.name == "value" and attribute.HasField("t"):
            return int(attribute.t.data_type)
    inputs = node.input[1:] if node.op_type in _CONDITIONAL_OPERATORS else node.input
    return next((types[name] for name in inputs if types.get(name)), 0)


def _tensor_facts(value: Any) -> dict[str, Any]:
    tensor = value.type.tensor_type
    shape = [
        size.dim_value if size.HasField("dim_value") else size.dim_param or "?"
        for size in tensor.shape.dim
    ]
    return {"name": value.name, "dtype": _type_name(tensor.elem_type), "shape": shape}


def _type_name(elem_type: int) -> str:
    return "unknown" if elem_type == TensorProto.UNDEFINED else dtype_name(elem_type)


_KERNELS = {
    "int4": ("MatMulNBits",),
    "dynamic": (
        "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "ConvInteger",
        "QAttention",
    ),
}  # fmt: skip


def check_kernels(engine: Path, options: Options) -> None:
    """Check that the optimized graph still computes with quantized weights."""
    is_dynamic = options.get("quantization") == "dynamic"
    kernels = _KERNELS.get("dynamic" if is_dynamic else str(options["precision"]))
    if kernels is None:
        return
    nodes = read_graph(engine).graph.node
    if not any(node.op_type in kernels for node in nodes):
        raise CheckFailed(
            f"the engine was requested in {options['precision']}, but none of its nodes is a"
            f" {' or '.join(kernels)}",
            "lower its graph_optimization_level: ONNX Runtime has undone the quantization",
        )


_CAST = "InsertedPrecisionFreeCast_"  # prefix of the fp32 copy of a tensor
_BLOCKED = "_nchwc"  # suffix of a blocked convolution's name
_REORDERS = ("ReorderInput", "ReorderOutput")  # they reorder memory and compute nothing
_MOST_NODES = 50  # per node


def source_nodes(source: Any, engine: Any) -> dict[str, list[str]]:
    """Find the nodes of ``source`` that each changed node of ``engine`` computes.

    ONNX Runtime keeps the names of nodes that it does not change, and of the tensors that a fused
    node returns; a convolution for a blocked layout (NCHWc) is named after its tensor. Nodes whose
    tensors are not in the engine belong to the nodes next to them. Inserted nodes have those of
    their reader. Seen in ONNX Runtime 1.31; nodes inside of subgraphs are left out.
    """
    nodes = list(source.node)
    numbers = {node.name: n for n, node in enumerate(nodes) if node.name}
    producers = {name: n for n, node in enumerate(nodes) for name in node.output if name}
    readers: dict[str, list[int]] = {}
    for n, node in enumerate(nodes):
        for name in node.input:
            readers.setdefault(name, []).append(n)
    tensors = {name.removeprefix(_CAST) for node in engine.node for name in node.output}
    tensors |= {value.name for value in (*engine.input, *engine.initializer)}
    owners = {  # nodes with the same name: number in the source -> in the engine
        n: place
        for place, node in enumerate(engine.node)
        if (n := numbers.get(node.name, -1)) >= 0 and nodes[n].op_type == node.op_type
    }
    for place, node in enumerate(engine.node):
        if node.op_type in _REORDERS:
            continue
        outputs = [name.removeprefix(_CAST) for name in node.output]
        ends = (*outputs, node.name.removesuffix(_BLOCKED))
        waiting = [n for n, owner in owners.items() if owner == place]
        waiting += [producers[name] for name in ends if name in producers]
        seen: set[int] = set()
        while waiting:
            n = waiting.pop()
            if n in seen or owners.setdefault(n, place) != place:
                continue
            seen.add(n)
            waiting += [
                producers[name] for name in nodes[n].input if name in producers.keys() - tensors
            ]
            for name in set(nodes[n].output) - tensors:
                waiting += readers[name] if len(readers.get(name, ())) == 1 else ()
    names = [node.name or next(iter(node.output), "") for node in nodes]
    origins: list[list[str]] = [[] for _ in engine.node]
    for n, place in sorted(owners.items()):
        origins[place].append(names[n])
    reading = {name: place for place, node in enumerate(engine.node) for name in node.input}
    for place, node in reversed(list(enumerate(engine.node))):
        following = next((reading[name] for name in node.output if name in reading), None)
        if following is not None and not origins[place] and node.op_type not in _REORDERS:
            origins[place] = origins[following]
    pairs = zip(engine.node, origins, strict=True)
    return {node.name: own[:_MOST_NODES] for node, own in pairs if node.name and own != [node.name]}
