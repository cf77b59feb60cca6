"""Selection of nodes to quantize, with reasons for those skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import all_nodes, operator_counts, subgraphs
from buildsys.onnx_graphs.tensor_types import element_types
from buildsys.stages.common.node_patterns import check_patterns, matching_pattern
from buildsys.stages.quantize.ranges import Ranges

HEAVY = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # nearly all of a network's time
# TensorRT requires a constant second input.
_WEIGHTED = {"Conv": 1, "ConvTranspose": 1}
# Operators with one activation input.
_SINGLE = ("Conv", "ConvTranspose", "AveragePool", "GlobalAveragePool", "MaxPool")
_SMALLEST = 1e-30  # magnitude with a sufficiently exact float32 scale


@dataclass(frozen=True)
class Chosen:
    """A node to quantize, with its activation and weight inputs."""

    activations: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass
class Selection:
    """Nodes to quantize in graph order, and skipped ones."""

    chosen: dict[str, Chosen] = field(default_factory=dict)  # by the node's name
    skipped: dict[str, str] = field(default_factory=dict)  # node -> reason


def select_nodes(model: ModelProto, ranges: Ranges, options: Mapping[str, Any]) -> Selection:
    """Select the nodes to quantize for the manifest's section ``quantize``.

    Raises: StageError: there are none, or a pattern of ``exclude`` matches no node.
    """
    exclude, names = options["exclude"], [node.name for node in model.graph.node]
    check_patterns("quantize.exclude", exclude, names)
    types = element_types(model)
    inputs = {value.name for value in model.graph.input}
    stored = {tensor.name for tensor in model.graph.initializer} - inputs
    selection = Selection()
    for node in model.graph.node:
        if node.op_type in options["operators"] and node.domain in ("", "ai.onnx"):
            pattern = matching_pattern(node.name, exclude)
            decision = f"excluded by {pattern}" if pattern else _select(node, types, stored, ranges)
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
            raise StageError(
                f"no node of the graph can be quantized: {name}: {reason}{more}",
                "correct the selection of nodes, or remove the quantized engines",
            )
        operators = ", ".join(options["operators"])
        present = ", ".join(list(operator_counts(model))[:6])
        raise StageError(
            f"there is nothing to quantize: the graph has no {operators}, only {present}",
            "set quantize.operators, or use another precision",
        )
    return selection


def _select(
    node: NodeProto, types: Mapping[str, int], stored: set[str], ranges: Ranges
) -> Chosen | str:
    """Select the inputs to quantize, or give the reason to skip."""
    slots = range(min(1 if node.op_type in _SINGLE else 2, len(node.input)))
    floats = [i for i in slots if types.get(node.input[i]) == TensorProto.FLOAT]
    if not floats or len(floats) < len(slots):
        return "it does not compute in float32"
    activations = tuple(i for i in floats if node.input[i] not in stored)
    weights = tuple(i for i in floats if i not in activations)
    weight = _WEIGHTED.get(node.op_type)
    if weight is not None:
        name = node.input[weight]
        if types.get(name) != TensorProto.FLOAT or name not in stored:
            return "its weights are computed"
        weights = (*weights, weight)
    if not activations:
        return "all its inputs are constant"
    for tensor in (node.input[i] for i in activations):
        if tensor not in ranges:
            return f"{tensor} has no measured range"
        largest = ranges[tensor].largest
        if largest == 0.0:
            return f"{tensor} is zero in all calibration batches"
        if largest < _SMALLEST:
            return f"the largest magnitude of {tensor}, {largest:.1e}, is too small for a scale"
    return Chosen(activations, weights)
