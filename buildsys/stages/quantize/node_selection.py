"""Selection of nodes to quantize, with reasons for those skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import all_nodes, operator_counts, subgraphs
from buildsys.onnx_graphs.tensor_types import FreshNames, element_types
from buildsys.stages.quantize.ranges import Ranges
from buildsys.system.suggestions import nearest

HEAVY = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # nearly all of a network's time
# TensorRT requires a constant second input.
_WEIGHTED = {"Conv": 1, "ConvTranspose": 1}
# Operators with one activation input.
_SINGLE = ("Conv", "ConvTranspose", "AveragePool", "GlobalAveragePool", "MaxPool")
_SMALLEST = 1e-30  # magnitude with a sufficiently exact float32 scale


@dataclass(frozen=True)
class Chosen:
    """A node to quantize, with its activation and weight inputs."""

    node: str
    activations: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass
class Selection:
    """Nodes to quantize in graph order, and skipped ones."""

    chosen: dict[str, Chosen] = field(default_factory=dict)  # by the node's name
    skipped: dict[str, str] = field(default_factory=dict)  # node -> reason


def named_nodes(model: ModelProto) -> None:
    """Give every node of the main graph a unique name."""
    fresh, taken = FreshNames(model.graph), set()
    for node in model.graph.node:
        if not node.name or node.name in taken:
            node.name = fresh.new(node.name or f"{node.op_type}_{node.output[0]}")
        taken.add(node.name)


def fits(name: str, pattern: str) -> bool:
    """Return True if a node's name equals or matches a pattern."""
    return name == pattern or fnmatchcase(name, pattern)


def select_nodes(model: ModelProto, ranges: Ranges, options: Mapping[str, Any]) -> Selection:
    """Return the nodes to quantize for the manifest's section ``quantize``.

    Raises: StageError: there are none, or a pattern of ``exclude`` matches no node.
    """
    _require_patterns(model, options["exclude"])
    selector = _Selector(model, ranges, options["exclude"])
    selection = Selection()
    for node in model.graph.node:
        if node.op_type in options["operators"] and node.domain in ("", "ai.onnx"):
            decision = selector.select(node)
            if isinstance(decision, str):
                selection.skipped[node.name] = decision
            else:
                selection.chosen[node.name] = decision
    bodies = [body for node in model.graph.node for body in subgraphs(node)]
    hidden = [node for body in bodies for node in all_nodes(body)]
    hidden += [node for function in model.functions for node in function.node]
    for node in hidden:
        if node.op_type in options["operators"]:
            name = node.name or node.output[0]
            selection.skipped[name] = "it is in a subgraph or a local function"
    if not selection.chosen:
        if selection.skipped:
            name, reason = next(iter(selection.skipped.items()))
            others = len(selection.skipped) - 1
            more = f" (and {others} more)" if others else ""
            raise StageError(f"no node of the graph can be quantized: {name}: {reason}{more}")
        wanted = ", ".join(options["operators"])
        found = ", ".join(list(operator_counts(model))[:6])
        raise StageError(
            f"there is nothing to quantize: the graph has no {wanted}, only {found}",
            "set quantize.operators, or use another precision",
        )
    return selection


class _Selector:
    """Selects among the nodes of one graph."""

    def __init__(self, model: ModelProto, ranges: Ranges, exclude: Sequence[str]) -> None:
        self._types = element_types(model)
        given = {value.name for value in model.graph.input}
        self._stored = {tensor.name for tensor in model.graph.initializer} - given
        self._ranges, self._exclude = ranges, exclude

    def select(self, node: NodeProto) -> Chosen | str:
        """Return the inputs to quantize, or the reason to skip."""
        pattern = next((pattern for pattern in self._exclude if fits(node.name, pattern)), None)
        if pattern is not None:
            return f"excluded by {pattern}"
        slots = range(min(1 if node.op_type in _SINGLE else 2, len(node.input)))
        floats = [i for i in slots if self._types.get(node.input[i]) == TensorProto.FLOAT]
        if not floats or len(floats) < len(slots):
            return "it does not compute in float32"
        activations = tuple(i for i in floats if node.input[i] not in self._stored)
        weights = tuple(i for i in floats if i not in activations)
        weight = _WEIGHTED.get(node.op_type)
        if weight is not None:
            name = node.input[weight]
            if self._types.get(name) != TensorProto.FLOAT or name not in self._stored:
                return "its weights are computed"
            weights = (*weights, weight)
        if not activations:
            return "all its inputs are constant"
        reason = next(
            (reason for i in activations if (reason := self._no_range(node.input[i]))), ""
        )
        return reason or Chosen(node.name, activations, weights)

    def _no_range(self, tensor: str) -> str:
        if tensor not in self._ranges:
            return f"{tensor} has no measured range"
        largest = self._ranges[tensor].largest
        if largest == 0.0:
            return f"{tensor} is zero in all calibration batches"
        too_small = f"the largest magnitude of {tensor}, {largest:.1e}, is too small for a scale"
        return too_small if largest < _SMALLEST else ""


def _require_patterns(model: ModelProto, exclude: Sequence[str]) -> None:
    names = [node.name for node in model.graph.node]
    for pattern in exclude:
        if not any(fits(name, pattern) for name in names):
            near = nearest(pattern, names, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?"
            examples = f"some names: {', '.join(names[:5])}"
            problem = f"quantize.exclude: {pattern} matches no node"
            raise StageError(problem, hint if near else examples)
