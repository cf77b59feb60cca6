"""Quantize/dequantize pairs before the inputs of selected nodes, and the selection.

TensorRT reads such a pair as int8 or fp8. Weights keep their float32 values and get a pair each; an
activation gets one for the whole tensor. All zero points are 0, as TensorRT requires.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import operator_counts, operator_name
from buildsys.onnx_graphs.tensor_types import FreshNames, element_types
from buildsys.onnx_graphs.tensors import Array
from buildsys.stages.calibrate.ranges import Ranges
from buildsys.stages.common.node_patterns import check_patterns, matching_pattern

HEAVY = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # nearly all of a network's time
# Operators with one activation input.
_SINGLE = ("Conv", "ConvTranspose", "AveragePool", "GlobalAveragePool", "MaxPool")
_SHOWN = 6
_SMALLEST = 1e-30  # magnitude with a sufficiently exact float32 scale
_CONVOLUTIONS = ("Conv", "ConvTranspose")  # TensorRT requires constant weights


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


@dataclass
class Selection:
    """Nodes to quantize in graph order with their inputs' places, and skipped ones."""

    chosen: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by the node's name
    skipped: dict[str, str] = field(default_factory=dict)  # node -> reason


def select_nodes(model: ModelProto, ranges: Ranges, options: Mapping[str, Any]) -> Selection:
    """Select the nodes to quantize for the manifest's section ``quantize``.

    Raises: StageError: there are none, or a pattern of ``exclude`` matches no node.
    """
    exclude, names = options["exclude"], [node.name for node in model.graph.node]
    check_patterns("quantize.exclude", exclude, names)
    types, stored = element_types(model), _stored(model).keys()
    selection = Selection()
    for node in model.graph.node:
        if operator_name(node) in options["operators"]:
            pattern = matching_pattern(node.name, exclude)
            reason = f"excluded by {pattern}" if pattern else ""
            places = _floats(node, types)
            reason = reason or _why_skipped(node, places, stored, ranges)
            if reason:
                selection.skipped[node.name] = reason
            else:
                selection.chosen[node.name] = places
    if not selection.chosen:
        reasons = [f"{name}: {reason}" for name, reason in selection.skipped.items()]
        operators = ", ".join(list(operator_counts(model))[:_SHOWN])
        why = "; ".join(reasons[:_SHOWN]) or f"its operators are {operators}"
        raise StageError(
            f"no node of the graph can be quantized: {why}",
            "correct the section quantize, or use another precision",
        )
    return selection


def _stored(model: ModelProto) -> dict[str, TensorProto]:
    """Map names to the initializers that callers cannot replace."""
    inputs = {value.name for value in model.graph.input}
    return {t.name: t for t in model.graph.initializer if t.name not in inputs}


def _floats(node: NodeProto, types: Mapping[str, int]) -> tuple[int, ...]:
    """List the data inputs and weights of a node, () unless all are float32."""
    count = 2 if node.op_type in _CONVOLUTIONS or node.op_type not in _SINGLE else 1
    places = tuple(range(min(count, len(node.input))))
    are_floats = all(types.get(node.input[i]) == TensorProto.FLOAT for i in places)
    return places if are_floats else ()


def _why_skipped(
    node: NodeProto, places: Sequence[int], stored: Collection[str], ranges: Ranges
) -> str:
    """Find the reason that a node cannot be quantized, "" if it can."""
    if not places:
        return "it does not compute in float32"
    if node.op_type in _CONVOLUTIONS and node.input[1] not in stored:
        return "its weights are computed"
    activations = [node.input[i] for i in places if node.input[i] not in stored]
    if not activations:
        return "all its inputs are constant"
    for tensor in activations:
        if tensor not in ranges:
            return f"{tensor} has no measured range"
        if ranges[tensor].largest < _SMALLEST:
            return f"the largest magnitude of {tensor}, {ranges[tensor].largest:.1e}, is too small"
    return ""


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
    weights, writer = _stored(model), _Writer(model, grid)
    places = [selection.chosen.get(node.name, ()) for node in model.graph.node]
    inputs = zip(model.graph.node, places, strict=True)
    activations = {node.input[place] for node, chosen in inputs for place in chosen} - set(weights)
    dequantized: dict[str, str] = {}

    def quantize(names: Iterable[str]) -> None:
        for name in filter(activations.__contains__, names):
            dequantized[name] = writer.add_pair(name, np.float64(limits[name]))

    quantize(value.name for value in model.graph.input)
    for node, chosen in zip(list(model.graph.node), places, strict=True):
        for place, name in enumerate(node.input):
            if place in chosen and name in weights:
                values = np.abs(numpy_helper.to_array(weights[name]).astype(np.float64))
                axis = channel_axis(node, place, values.ndim) if per_channel else None
                node.input[place] = writer.quantize_weight(name, values, axis)
            elif name in dequantized and (grid.is_shared or place in chosen):
                node.input[place] = dequantized[name]
        writer.nodes.append(node)
        results = list(node.output)
        if outputs and chosen and limits.get(results[0], 0.0) > 0.0:
            node.output[0] = writer.fresh.new(f"{results[0]}_exact")
            writer.add_pair(node.output[0], np.float64(limits[results[0]]), target=results[0])
        quantize(results)
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
    """Writes pairs of quantizers; a weight gets at most one per axis."""

    def __init__(self, model: ModelProto, grid: Grid) -> None:
        self._graph, self._grid = model.graph, grid
        self._weights: dict[tuple[str, int | None], str] = {}
        self.fresh = FreshNames(model.graph)
        self.nodes: list[NodeProto] = []

    def quantize_weight(self, name: str, magnitudes: Array, axis: int | None) -> str:
        if (name, axis) not in self._weights:
            others = tuple(i for i in range(magnitudes.ndim) if i != axis)
            self._weights[name, axis] = self.add_pair(name, magnitudes.max(axis=others), axis)
        return self._weights[name, axis]

    def add_pair(
        self, source: str, largest: Array | np.float64, axis: int | None = None, target: str = ""
    ) -> str:
        target = target or self.fresh.new(f"{source}_dequantized")
        scale = np.asarray(largest / self._grid.largest, np.float32)
        # a channel of zeros gets 1
        scale = np.where(scale > np.finfo(np.float32).tiny, scale, np.float32(1.0))
        scale_name, zero_name, quantized = (
            self.fresh.new(f"{target}_{part}") for part in ("scale", "zero_point", "quantized")
        )
        zeros = b"\0" * int(scale.size)
        self._graph.initializer.extend((
            numpy_helper.from_array(np.asarray(scale, np.float32), scale_name),
            helper.make_tensor(zero_name, self._grid.elem_type, scale.shape, zeros, raw=True),
        ))  # fmt: skip
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        ends = {"QuantizeLinear": (source, quantized), "DequantizeLinear": (quantized, target)}
        for operator, (read, result) in ends.items():
            inputs, name = [read, scale_name, zero_name], self.fresh.new(f"{result}_{operator}")
            self.nodes.append(helper.make_node(operator, inputs, [result], name, **attributes))
        return target


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
