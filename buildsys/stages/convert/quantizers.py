"""Quantize/dequantize pairs before the inputs of selected nodes, and the selection.

TensorRT reads such a pair as int8 or fp8. Weights keep their float32 values and get a pair each; an
activation gets one for the whole tensor. All zero points are 0, as TensorRT requires.

The quantizer of onnxruntime.quantization is not used: it needs its own settings and repairs for
int8 (betas of Gemm, types of tensors), and its scales of fp8 activations ignore the ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import all_nodes, operator_counts, operator_name, subgraphs
from buildsys.onnx_graphs.tensor_types import FreshNames, element_types
from buildsys.onnx_graphs.tensors import Array
from buildsys.stages.calibrate.ranges import Ranges
from buildsys.stages.common.node_patterns import check_patterns, matching_pattern

HEAVY = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # nearly all of a network's time
# TensorRT requires a constant second input.
_WEIGHTED = {"Conv": 1, "ConvTranspose": 1}
# Operators with one activation input.
_SINGLE = ("Conv", "ConvTranspose", "AveragePool", "GlobalAveragePool", "MaxPool")
_SHOWN = 6
_SMALLEST = 1e-30  # magnitude with a sufficiently exact float32 scale
_CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class Grid:
    """The ONNX type and largest value of a quantized tensor.

    If it is shared, nodes that are not quantized read it too, as TensorRT expects of residual
    additions in int8; otherwise they read the exact tensor.
    """

    elem_type: int
    largest: float
    is_shared: bool


GRIDS = {
    "int8": Grid(TensorProto.INT8, 127.0, is_shared=True),
    "fp8": Grid(TensorProto.FLOAT8E4M3FN, 448.0, is_shared=False),
}


def insert_quantizers(
    model: ModelProto,
    selection: Selection,
    limits: Mapping[str, float],
    grid: Grid,
    *,
    per_channel: bool,
    outputs: bool,
) -> None:
    """Rewrite ``model`` in place.

    ``limits`` maps each tensor to the magnitude of the largest value of ``grid``.
    """
    writer, nodes = _Writer(model, limits, grid), list(model.graph.node)
    shared = {
        node.input[place]
        for node in nodes
        for place in selection.activations_of(node)
        if grid.is_shared
    }
    writer.share(value.name for value in model.graph.input if value.name in shared)
    for node in nodes:
        chosen = selection.chosen.get(node.name)
        if chosen is not None:
            writer.quantize_inputs(node, chosen, per_channel=per_channel)
        node.input[:] = [writer.shared.get(name, name) for name in node.input]
        writer.nodes.append(node)
        results = list(node.output)
        if chosen is not None and outputs:
            writer.quantize_output(node)
        writer.share(name for name in results if name in shared)
    del model.graph.node[:]
    model.graph.node.extend(writer.nodes)


def set_kernel_shapes(model: ModelProto) -> None:
    """Set the ``kernel_shape`` of each convolution of the main graph, in place.

    Other graphs than exported ones may leave it to the weights' shape. TensorRT 8.6 infers it from
    stored weights, but not through a quantizer ("misaligns with the input kernel shape").
    """
    shapes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    for node in model.graph.node:
        if operator_name(node) not in _CONVOLUTIONS or node.input[1] not in shapes:
            continue
        if all(attribute.name != "kernel_shape" for attribute in node.attribute):
            node.attribute.append(
                helper.make_attribute("kernel_shape", list(shapes[node.input[1]])[2:])
            )


def are_clipped(precision: str, algorithm: str) -> bool:
    """Check for an algorithm that cuts outliers.

    The entropy method assumes the even levels of int8. The steps of fp8 grow with the value, so it
    loses nothing by covering the largest one.
    """
    return algorithm != "minmax" and (precision, algorithm) != ("fp8", "entropy")


def limits_of(ranges: Ranges, precision: str, algorithm: str) -> dict[str, float]:
    """Choose the clipping magnitude of each tensor."""
    clipped = are_clipped(precision, algorithm)
    return {name: span.limit if clipped else span.largest for name, span in ranges.items()}


class _Writer:
    """Rewrites the nodes; every tensor gets at most one pair."""

    def __init__(self, model: ModelProto, limits: Mapping[str, float], grid: Grid) -> None:
        self._graph, self._limits, self._grid = model.graph, limits, grid
        self._fresh = FreshNames(model.graph)
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._pairs: dict[tuple[str, int | None], str] = {}
        self.nodes: list[NodeProto] = []
        self.shared: dict[str, str] = {}  # tensor -> its dequantized form

    def share(self, names: Iterable[str]) -> None:
        """Quantize activations for all nodes that follow."""
        for name in names:
            limit = np.float64(self._limits[name])
            self.shared[name] = self._dequantized(name, limit, None)

    def quantize_inputs(self, node: NodeProto, chosen: Chosen, *, per_channel: bool) -> None:
        for place in chosen.activations:
            name = node.input[place]
            node.input[place] = self._dequantized(name, np.float64(self._limits[name]), None)
        for place in chosen.weights:
            name = node.input[place]
            values = np.abs(numpy_helper.to_array(self._weights[name]).astype(np.float64))
            axis = channel_axis(node, place, values.ndim) if per_channel else None
            others = tuple(i for i in range(values.ndim) if i != axis)
            largest = values.max() if axis is None else values.max(axis=others)
            node.input[place] = self._dequantized(name, largest, axis)

    def quantize_output(self, node: NodeProto) -> None:
        """Quantize a result for the nodes downstream."""
        name = node.output[0]
        if self._limits.get(name, 0.0) > 0.0:
            node.output[0] = self._fresh.new(f"{name}_exact")
            self._add_pair(node.output[0], name, np.float64(self._limits[name]), None)

    def _dequantized(self, name: str, largest: Array | np.float64, axis: int | None) -> str:
        if (name, axis) not in self._pairs:
            self._pairs[name, axis] = self._fresh.new(f"{name}_dequantized")
            self._add_pair(name, self._pairs[name, axis], largest, axis)
        return self._pairs[name, axis]

    def _add_pair(
        self, source: str, target: str, largest: Array | np.float64, axis: int | None
    ) -> None:
        scale = np.asarray(largest / self._grid.largest, np.float32)
        # a channel of zeros gets 1
        scale = np.where(scale > np.finfo(np.float32).tiny, scale, np.float32(1.0))
        scale_name, zero_name, quantized = (
            self._fresh.new(f"{target}_{part}") for part in ("scale", "zero_point", "quantized")
        )
        zeros = b"\0" * int(scale.size)
        self._graph.initializer.extend((
            numpy_helper.from_array(np.asarray(scale, np.float32), scale_name),
            helper.make_tensor(zero_name, self._grid.elem_type, scale.shape, zeros, raw=True),
        ))  # fmt: skip
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        ends = {"QuantizeLinear": (source, quantized), "DequantizeLinear": (quantized, target)}
        for operator, (read, result) in ends.items():
            inputs, name = [read, scale_name, zero_name], self._fresh.new(f"{result}_{operator}")
            self.nodes.append(helper.make_node(operator, inputs, [result], name, **attributes))


def channel_axis(node: NodeProto, place: int, dimensions: int) -> int | None:
    """Find the axis of a weight's output channels, None without one."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        flags = {attribute.name: attribute.i for attribute in node.attribute}
        transposed = bool(flags.get("transB" if place == 1 else "transA", 0))
        return int(transposed != (place == 1))
    if node.op_type == "MatMul" and dimensions >= 2:
        return dimensions - 1 if place == 1 else dimensions - 2
    return None


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

    def activations_of(self, node: NodeProto) -> tuple[int, ...]:
        """List the activation inputs to quantize."""
        return self.chosen[node.name].activations if node.name in self.chosen else ()


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
        reasons = [f"{name}: {reason}" for name, reason in selection.skipped.items()]
        operators = ", ".join(list(operator_counts(model))[:_SHOWN])
        why = "; ".join(reasons[:_SHOWN]) or f"its operators are {operators}"
        raise StageError(
            f"no node of the graph can be quantized: {why}",
            "correct the section quantize, or use another precision",
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
