"""Insertion of quantize/dequantize pairs before the inputs of selected nodes.

TensorRT reads such a pair as int8 or fp8. Weights keep their float32 values and get a pair each; an
activation gets one for the whole tensor. All zero points are 0, as TensorRT requires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from buildsys.onnx_graphs.rounding.fresh_names import FreshNames
from buildsys.onnx_graphs.tensors import Array
from buildsys.stages.quantize.node_selection import Chosen, Selection
from buildsys.stages.quantize.ranges import Range, Ranges


@dataclass(frozen=True)
class Grid:
    """The ONNX type and largest value of a quantized tensor."""

    elem_type: int
    largest: float


GRIDS = {"int8": Grid(TensorProto.INT8, 127.0), "fp8": Grid(TensorProto.FLOAT8E4M3FN, 448.0)}


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
    writer = _Writer(model, limits, grid)
    for node in list(model.graph.node):
        chosen = selection.chosen.get(node.name)
        if chosen is not None:
            writer.quantize_inputs(node, chosen, per_channel=per_channel)
        writer.nodes.append(node)
        if chosen is not None and outputs:
            writer.quantize_output(node)
    del model.graph.node[:]
    model.graph.node.extend(writer.nodes)


def limits_of(ranges: Ranges, precision: str, algorithm: str) -> dict[str, float]:
    """Return the clipping magnitude of each tensor.

    The entropy method assumes the even levels of int8. The steps of fp8 grow with the value, so it
    loses nothing by covering the largest one.
    """
    whole = algorithm == "minmax" or (precision == "fp8" and algorithm == "entropy")
    pick: Callable[[Range], float] = (
        (lambda found: found.largest) if whole else (lambda found: found.limit)
    )
    return {name: pick(found) for name, found in ranges.items()}


class _Writer:
    """Rewrites the nodes; every tensor gets at most one pair."""

    def __init__(self, model: ModelProto, limits: Mapping[str, float], grid: Grid) -> None:
        self._graph, self._limits, self._grid = model.graph, limits, grid
        self._fresh = FreshNames(model.graph)
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._pairs: dict[tuple[str, int | None], str] = {}
        self.nodes: list[NodeProto] = []

    def quantize_inputs(self, node: NodeProto, chosen: Chosen, *, per_channel: bool) -> None:
        for place in chosen.activations:
            node.input[place] = self._activation(node.input[place])
        for place in chosen.weights:
            node.input[place] = self._weight(node, place, per_channel=per_channel)

    def quantize_output(self, node: NodeProto) -> None:
        """Quantize a result for the nodes downstream."""
        name = node.output[0]
        if self._limits.get(name, 0.0) > 0.0:
            node.output[0] = self._fresh.new(f"{name}_exact")
            self._add_pair(node.output[0], name, self._scale(np.float64(self._limits[name])), None)

    def _activation(self, name: str) -> str:
        if (name, None) not in self._pairs:
            result = self._fresh.new(f"{name}_dequantized")
            self._pairs[name, None] = result
            self._add_pair(name, result, self._scale(np.float64(self._limits[name])), None)
        return self._pairs[name, None]

    def _weight(self, node: NodeProto, place: int, *, per_channel: bool) -> str:
        name = node.input[place]
        values = np.abs(numpy_helper.to_array(self._weights[name]).astype(np.float64))
        axis = channel_axis(node, place, values.ndim) if per_channel else None
        if (name, axis) not in self._pairs:
            others = tuple(i for i in range(values.ndim) if i != axis)
            largest = values.max() if axis is None else values.max(axis=others)
            result = self._fresh.new(f"{name}_dequantized")
            self._pairs[name, axis] = result
            self._add_pair(name, result, self._scale(largest), axis)
        return self._pairs[name, axis]

    def _scale(self, largest: Array | np.float64) -> Array:
        scale = np.asarray(largest / self._grid.largest, np.float32)
        # a channel of zeros gets 1
        return np.where(scale > np.finfo(np.float32).tiny, scale, np.float32(1.0))

    def _add_pair(self, source: str, target: str, scale: Array, axis: int | None) -> None:
        scale_name, zero_name, quantized = (
            self._fresh.new(f"{target}_{part}") for part in ("scale", "zero_point", "quantized")
        )
        self._graph.initializer.append(
            numpy_helper.from_array(np.asarray(scale, np.float32), scale_name)
        )
        zeros = b"\0" * int(scale.size)
        self._graph.initializer.append(
            helper.make_tensor(zero_name, self._grid.elem_type, scale.shape, zeros, raw=True)
        )
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        for operator, (taken, given) in (
            ("QuantizeLinear", (source, quantized)),
            ("DequantizeLinear", (quantized, target)),
        ):
            name = self._fresh.new(f"{given}_{operator}")
            self.nodes.append(
                helper.make_node(
                    operator, [taken, scale_name, zero_name], [given], name, **attributes
                )
            )


def channel_axis(node: NodeProto, place: int, dimensions: int) -> int | None:
    """Return the axis of a weight's output channels, None without one."""
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
