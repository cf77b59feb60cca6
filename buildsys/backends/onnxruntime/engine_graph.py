"""Facts of a graph saved by ONNX Runtime."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """Return a graph's tensors, operators, and shares of types."""
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
        found = types.get(node.output[0]) or _output_type(node, types)
        types.update({name: found for name in node.output if name not in types})
        counts[_type_name(found)] += 1
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
    """Check that the optimized graph still computes with quantized weights.

    Raises: CheckFailed: no node of the engine does.
    """
    is_dynamic = options.get("quantization") == "dynamic"
    wanted = _KERNELS.get("dynamic" if is_dynamic else str(options["precision"]))
    if wanted is None:
        return
    nodes = read_graph(engine).graph.node
    if not any(node.op_type in wanted for node in nodes):
        raise CheckFailed(
            f"the engine was requested in {options['precision']}, but none of its nodes is a"
            f" {' or '.join(wanted)}",
            "lower its graph_optimization_level: ONNX Runtime has undone the quantization",
        )


_CAST = "InsertedPrecisionFreeCast_"  # prefix of the fp32 copy of a tensor
_BLOCKED = "_nchwc"  # suffix of a blocked convolution's name
_REORDERS = ("ReorderInput", "ReorderOutput")  # of memory; they compute nothing
_ADDITIONS = ("Add", "Sum")
_SUM = 3  # the input of a blocked convolution that is added to its result
_MOST_NODES = 50  # of one node
_FARTHEST = 8  # inserted nodes in a row


def source_nodes(source: Any, engine: Any) -> dict[str, list[str]]:
    """Return engine node -> nodes of ``source``, without unchanged nodes.

    Both are ONNX graphs; nodes inside of their subgraphs are left out.
    """
    nodes = list(source.node)
    matches = _Matches(nodes, engine)
    names = [node.name or next(iter(node.output), "") for node in nodes]
    found = {
        node.name: [names[one] for one in sorted(own)][:_MOST_NODES]
        for node, own in zip(engine.node, matches.found(), strict=True)
    }
    return {name: own for name, own in found.items() if name and own != [name]}


def _tensor(name: str) -> str:
    """Return the source tensor that a node computes, of fp16 on a CPU in fp32."""
    return name.removeprefix(_CAST)


class _Matches:
    """Matching nodes of two graphs; source nodes by their index."""

    def __init__(self, source: Sequence[Any], engine: Any) -> None:
        self._source = source
        self._engine = list(engine.node)
        self._named = {node.name: n for n, node in enumerate(source) if node.name}
        self._producers = {o: n for n, node in enumerate(source) for o in node.output if o}
        self._readers: dict[str, list[int]] = {}
        for n, node in enumerate(source):
            for name in node.input:
                self._readers.setdefault(name, []).append(n)
        self._kept = {_tensor(name) for node in self._engine for name in node.output}
        self._kept |= {one.name for one in (*engine.input, *engine.initializer)}
        self._owned: set[int] = set()

    def found(self) -> list[list[int]]:
        """Return the source nodes of each node of the engine."""
        own = [self._same(node) for node in self._engine]
        for node, mine in zip(self._engine, own, strict=True):
            if node.op_type not in _REORDERS:
                outputs = map(_tensor, node.output)
                ends = (self._producers[name] for name in outputs if name in self._producers)
                self._take_before([*mine, *ends], mine)
        readers = {name: n for n, node in enumerate(self._engine) for name in node.input}
        return [
            [] if node.op_type in _REORDERS else self._of_next(n, own, readers)
            for n, node in enumerate(self._engine)
        ]

    def _same(self, node: Any) -> list[int]:
        """Return the source node of this name, or a blocked convolution's nodes."""
        n = self._named.get(node.name)
        if n is not None and self._source[n].op_type == node.op_type:
            return self._take(n)
        tensor = node.name.removesuffix(_BLOCKED)
        if tensor == node.name or tensor not in self._producers:
            return []
        current = self._producers[tensor]
        mine = self._take(current)
        activation = next((a.s.decode() for a in node.attribute if a.name == "activation"), "")
        steps: list[tuple[str, ...]] = (
            [_ADDITIONS] if len(node.input) > _SUM and node.input[_SUM] else []
        )
        if activation and (steps or self._source[current].op_type != activation):
            steps.append((activation,))
        for operators in steps:  # in the same kernel
            following = (r for o in self._source[current].output for r in self._readers.get(o, ()))
            free = (r for r in following if self._source[r].op_type in operators)
            current = next((r for r in free if r not in self._owned), -1)
            if current < 0:
                break
            mine += self._take(current)
        return mine

    def _take(self, n: int) -> list[int]:
        if n in self._owned:
            return []
        self._owned.add(n)
        return [n]

    def _take_before(self, starts: Sequence[int], mine: list[int]) -> None:
        """Add the nodes before ``starts`` up to tensors of the engine."""
        waiting, seen = list(starts), set()
        while waiting:
            n = waiting.pop()
            if n in seen or (n in self._owned and n not in mine):
                continue
            seen.add(n)
            mine += self._take(n)
            names = (name for name in self._source[n].input if name not in self._kept)
            waiting += [self._producers[name] for name in names if name in self._producers]

    def _of_next(self, n: int, own: Sequence[list[int]], readers: Mapping[str, int]) -> list[int]:
        """Return the source nodes of a node or its nearest successor."""
        for _ in range(_FARTHEST):
            if own[n]:
                break
            following = (readers[name] for name in self._engine[n].output if name in readers)
            n = next(following, n)
        return own[n]
