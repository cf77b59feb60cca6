"""Which nodes of a graph are quantized, and why others are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import all_nodes, operator_counts, subgraphs
from buildsys.onnx_graphs.rounding.fresh_names import FreshNames
from buildsys.onnx_graphs.rounding.tensor_types import element_types
from buildsys.stages.quantize.ranges import Ranges
from buildsys.system.suggestions import nearest

HEAVY = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # where nearly all of a network's time goes
_WEIGHTED = {
    "Conv": 1,
    "ConvTranspose": 1,
}  # operators whose second input TensorRT wants to be constant
_SINGLE = (
    "Conv",
    "ConvTranspose",
    "AveragePool",
    "GlobalAveragePool",
    "MaxPool",
)  # they take one activation
_SMALLEST = 1e-30  # magnitude from which a float32 scale is exact enough


@dataclass(frozen=True)
class Chosen:
    """A node to quantize: which of its inputs are activations, which are stored weights."""

    node: str
    activations: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass
class Selection:
    """The nodes to quantize, in the graph's order, and those of the wanted operators that stay as they are."""

    chosen: dict[str, Chosen] = field(default_factory=dict)  # by the node's name
    skipped: dict[str, str] = field(default_factory=dict)  # node -> why


def named_nodes(model: ModelProto) -> None:
    """Give every node of the main graph a name of its own, by which it can be excluded."""
    fresh, taken = FreshNames(model.graph), set()
    for node in model.graph.node:
        if not node.name or node.name in taken:
            node.name = fresh.new(node.name or f"{node.op_type}_{node.output[0]}")
        taken.add(node.name)


def fits(name: str, pattern: str) -> bool:
    """Tell whether a node's name is a pattern or fits it; brackets in a name need no care."""
    return name == pattern or fnmatchcase(name, pattern)


def select_nodes(model: ModelProto, ranges: Ranges, options: Mapping[str, Any]) -> Selection:
    """Return what of ``model`` is quantized with the manifest's section ``quantize``.

    Raises: StageError: nothing is, or a pattern of ``exclude`` fits no node.
    """
    nodes = list(model.graph.node)
    _require_patterns(nodes, options["exclude"])
    judge = _Judge(model, ranges, options["exclude"])
    selection = Selection()
    for node in nodes:
        if node.op_type in options["operators"] and node.domain in ("", "ai.onnx"):
            found = judge.judge(node)
            if isinstance(found, str):
                selection.skipped[node.name] = found
            else:
                selection.chosen[node.name] = found
    for node in _hidden_nodes(model):
        if node.op_type in options["operators"]:
            selection.skipped[node.name or node.output[0]] = (
                "it lies in a subgraph or a local function"
            )
    if not selection.chosen:
        raise StageError(*_nothing(model, selection, options["operators"]))
    return selection


class _Judge:
    """Looks at the nodes of one graph."""

    def __init__(self, model: ModelProto, ranges: Ranges, exclude: Sequence[str]) -> None:
        self._types = element_types(model)
        given = {value.name for value in model.graph.input}
        self._stored = {tensor.name for tensor in model.graph.initializer} - given
        self._ranges, self._exclude = ranges, exclude

    def judge(self, node: NodeProto) -> Chosen | str:
        """Return which inputs are quantized, or why none is."""
        pattern = next((pattern for pattern in self._exclude if fits(node.name, pattern)), None)
        if pattern is not None:
            return f"excluded by {pattern}"
        places = range(min(1 if node.op_type in _SINGLE else 2, len(node.input)))
        floats = [i for i in places if self._types.get(node.input[i]) == TensorProto.FLOAT]
        if not floats or len(floats) < len(places):
            return "it does not compute in float32"
        activations = tuple(i for i in floats if node.input[i] not in self._stored)
        weights = tuple(i for i in floats if i not in activations)
        weight = _WEIGHTED.get(node.op_type)
        if weight is not None:
            if (
                self._types.get(node.input[weight]) != TensorProto.FLOAT
                or node.input[weight] not in self._stored
            ):
                return "its weights are computed"
            weights = (*weights, weight)
        if not activations:
            return "it takes constants alone"
        reason = next(
            (reason for i in activations if (reason := self._no_range(node.input[i]))), ""
        )
        return reason or Chosen(node.name, activations, weights)

    def _no_range(self, tensor: str) -> str:
        if tensor not in self._ranges:
            return f"no range was measured of {tensor}"
        largest = self._ranges[tensor].largest
        if largest == 0.0:
            return f"{tensor} is zero in all calibration batches"
        return (
            f"{tensor} reaches {largest:.1e} only, too little for a scale"
            if largest < _SMALLEST
            else ""
        )


def _require_patterns(nodes: Sequence[NodeProto], exclude: Sequence[str]) -> None:
    names = [node.name for node in nodes]
    for pattern in exclude:
        if not any(fits(name, pattern) for name in names):
            near = nearest(pattern, names, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"names are such as {', '.join(names[:5])}"
            )
            raise StageError(f"quantize.exclude: {pattern} fits the name of no node", hint)


def _hidden_nodes(model: ModelProto) -> Iterator[NodeProto]:
    for node in model.graph.node:
        for body in subgraphs(node):
            yield from all_nodes(body)
    for function in model.functions:
        yield from function.node


def _nothing(model: ModelProto, selection: Selection, operators: Sequence[str]) -> tuple[str, str]:
    if selection.skipped:
        node, reason = next(iter(selection.skipped.items()))
        more = f" (and {len(selection.skipped) - 1} more)" if len(selection.skipped) > 1 else ""
        return f"no node of the graph can be quantized: {node}: {reason}{more}", ""
    found = ", ".join(list(operator_counts(model))[:6])
    return (
        f"there is nothing to quantize: the graph has no {', '.join(operators)}, only {found}",
        "set quantize.operators, or use another precision",
    )
