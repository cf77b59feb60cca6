"""Insertion of quantize/dequantize pairs before the inputs of selected nodes.

TensorRT reads such a pair as int8 or fp8. Weights keep their float32 values and get a pair each; an
activation gets one for the whole tensor. All zero points are 0, as TensorRT requires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from buildsys.onnx_graphs.onnx_file import operator_name
from buildsys.onnx_graphs.tensor_types import FreshNames, element_types
from buildsys.onnx_graphs.tensors import Array
from buildsys.stages.quantize.node_selection import Chosen, Selection
from buildsys.stages.quantize.ranges import Ranges

_CONVOLUTIONS = ("Conv", "ConvTranspose")


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


def limits_of(ranges: Ranges, precision: str, algorithm: str) -> dict[str, float]:
    """Return the clipping magnitude of each tensor.

    The entropy method assumes the even levels of int8. The steps of fp8 grow with the value, so it
    loses nothing by covering the largest one.
    """
    whole = algorithm == "minmax" or (precision == "fp8" and algorithm == "entropy")
    return {name: span.largest if whole else span.limit for name, span in ranges.items()}


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


def insert_by_onnxruntime(
    model: ModelProto,
    selection: Selection,
    limits: Mapping[str, float],
    *,
    per_channel: bool,
    outputs: bool,
) -> ModelProto:
    """Insert int8 quantizers by onnxruntime.quantization.

    TensorRT rejects its defaults (zero points other than 0, int32 biases). These settings work in
    both TensorRT and ONNX Runtime. ``limits`` maps each tensor to the magnitude of the value 127.
    """
    # slow to import
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import TensorData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import add_infer_metadata

    operators = {node.op_type for node in model.graph.node if node.name in selection.chosen}
    betas = {node.name: beta.f for node, beta in _betas(model)}
    described = {
        value.name for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)
    }
    for name, elem_type in element_types(model).items():  # of intermediate tensors
        if elem_type == TensorProto.FLOAT and name not in described:
            model.graph.value_info.append(helper.make_tensor_value_info(name, elem_type, None))
    add_infer_metadata(model)  # else it infers the types again through a file
    quantizer = QDQQuantizer(
        model,
        per_channel,
        False,  # full int8 range: session_options avoids overflow on CPUs without VNNI
        QuantType.QInt8,
        QuantType.QInt8,
        {
            name: TensorData(lowest=np.float32(-limit), highest=np.float32(limit))
            for name, limit in limits.items()
            if limit > 0.0
        },
        list(selection.chosen),
        [],
        sorted(operators),
        {
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "QuantizeBias": False,
            "AddQDQPairToWeight": True,
            "QDQOpTypePerChannelSupportToAxis": {"MatMul": -1},
            "OpTypesToExcludeOutputQuantization": [] if outputs else sorted(operators),
        },
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    result: ModelProto = quantizer.model.model
    del result.metadata_props[:]
    del result.graph.value_info[:]
    for node, beta in _betas(result):
        beta.f = betas.get(node.name, beta.f)
    return result


def _betas(model: ModelProto) -> Iterator[tuple[NodeProto, AttributeProto]]:
    """Yield the beta of each Gemm; the quantizer resets all to 1."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Gemm" and attribute.name == "beta":
                yield node, attribute
