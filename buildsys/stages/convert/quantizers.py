"""Quantize/dequantize pairs before the inputs of selected nodes, and the selection.

TensorRT reads such a pair as int8 or fp8. Weights keep their float32 values and get a pair each; an
activation gets one for the whole tensor. All zero points are 0, as TensorRT requires.
"""

from collections.abc import Iterable, Mapping
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
_POOLS = ("AveragePool", "GlobalAveragePool", "MaxPool")
_CONVOLUTIONS = ("Conv", "ConvTranspose")  # TensorRT requires constant weights
_MOST_NAMED = 6
# precision -> type and largest value of a quantized tensor
_GRIDS = {"int8": (TensorProto.INT8, 127.0), "fp8": (TensorProto.FLOAT8E4M3FN, 448.0)}


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
    types, stored = element_types(model), _stored(model)
    selection = Selection()
    for node in model.graph.node:
        if operator_name(node) not in options["operators"]:
            continue
        places = (0,) if node.op_type in _POOLS else (0, 1)
        activations = [node.input[place] for place in places if node.input[place] not in stored]
        unknown = next((tensor for tensor in activations if tensor not in ranges), "")
        reason = ""
        if pattern := matching_pattern(node.name, exclude):
            reason = f"excluded by {pattern}"
        elif any(types.get(node.input[place]) != TensorProto.FLOAT for place in places):
            reason = "it does not compute in float32"
        elif node.op_type in _CONVOLUTIONS and node.input[1] not in stored:
            reason = "its weights are computed"
        elif not activations:
            reason = "all its inputs are constant"
        elif unknown:
            reason = f"{unknown} has no measured range"
        if reason:
            selection.skipped[node.name] = reason
        else:
            selection.chosen[node.name] = places
    if not selection.chosen:
        reasons = [f"{name}: {reason}" for name, reason in selection.skipped.items()]
        operators = ", ".join(list(operator_counts(model))[:_MOST_NAMED])
        why = "; ".join(reasons[:_MOST_NAMED]) or f"its operators are {operators}"
        raise StageError(
            f"no node of the graph can be quantized: {why}",
            "correct the section quantize, or use another precision",
        )
    return selection


def _stored(model: ModelProto) -> dict[str, TensorProto]:
    """Map names to the initializers that callers cannot replace."""
    inputs = {value.name for value in model.graph.input}
    return {t.name: t for t in model.graph.initializer if t.name not in inputs}


def insert_quantizers(
    model: ModelProto,
    selection: Selection,
    limits: Mapping[str, float],
    precision: str,
    *,
    per_channel: bool,
    outputs: bool,
) -> None:
    """Rewrite ``model`` in place; ``limits`` are the largest magnitudes of tensors.

    In int8, nodes that are not quantized read quantized tensors too, as TensorRT expects of
    residual additions; in fp8 they read the exact ones.
    """
    elem_type, largest_value = _GRIDS[precision]
    weights, fresh, nodes = _stored(model), FreshNames(model.graph), list[NodeProto]()
    places = [selection.chosen.get(node.name, ()) for node in model.graph.node]
    inputs = zip(model.graph.node, places, strict=True)
    activations = {node.input[place] for node, chosen in inputs for place in chosen} - set(weights)
    dequantized: dict[tuple[str, int | None], str] = {}  # by tensor and axis of the scales

    def add_pair(
        source: str, largest: Array | float, axis: int | None = None, target: str = ""
    ) -> None:
        target = target or fresh.new(f"{source}_dequantized")
        dequantized[source, axis] = target
        scale = np.asarray(largest / np.float64(largest_value), np.float32)
        # a channel of zeros gets 1
        scale = np.where(scale > np.finfo(np.float32).tiny, scale, np.float32(1.0))
        scale_name, zero_name, quantized = (
            fresh.new(f"{target}_{part}") for part in ("scale", "zero_point", "quantized")
        )
        zeros = b"\0" * int(scale.size)
        model.graph.initializer.extend((
            numpy_helper.from_array(np.asarray(scale, np.float32), scale_name),
            helper.make_tensor(zero_name, elem_type, scale.shape, zeros, raw=True),
        ))  # fmt: skip
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        ends = {"QuantizeLinear": (source, quantized), "DequantizeLinear": (quantized, target)}
        for operator, (read, result) in ends.items():
            names, name = [read, scale_name, zero_name], fresh.new(f"{result}_{operator}")
            nodes.append(helper.make_node(operator, names, [result], name, **attributes))

    def quantize(names: Iterable[str]) -> None:
        for name in filter(activations.__contains__, names):
            add_pair(name, limits[name])

    quantize(value.name for value in model.graph.input)
    for node, chosen in zip(list(model.graph.node), places, strict=True):
        for place, name in enumerate(node.input):
            axis = None
            if name in weights and place in chosen:
                values = np.abs(numpy_helper.to_array(weights[name]).astype(np.float64))
                axis = channel_axis(node, place, values.ndim) if per_channel else None
                if (name, axis) not in dequantized:
                    others = tuple(i for i in range(values.ndim) if i != axis)
                    add_pair(name, values.max(axis=others), axis)
            is_read = place in chosen or (precision == "int8" and name not in weights)
            if is_read and (name, axis) in dequantized:
                node.input[place] = dequantized[name, axis]
        nodes.append(node)
        results = list(node.output)
        if outputs and chosen and limits.get(results[0], 0.0) > 0.0:
            node.output[0] = fresh.new(f"{results[0]}_exact")
            add_pair(node.output[0], limits[results[0]], target=results[0])
        quantize(results)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def set_kernel_shapes(model: ModelProto) -> None:
    """Set the ``kernel_shape`` of each convolution of the main graph, in place.

    Other graphs than exported ones may leave it to the weights' shape. TensorRT 8.6 infers it from
    stored weights, but not through a quantizer ("misaligns with the input kernel shape").
    """
    shapes = {tensor.name: list(tensor.dims)[2:] for tensor in model.graph.initializer}
    for node in model.graph.node:
        is_unset = all(attribute.name != "kernel_shape" for attribute in node.attribute)
        if operator_name(node) in _CONVOLUTIONS and node.input[1] in shapes and is_unset:
            node.attribute.append(helper.make_attribute("kernel_shape", shapes[node.input[1]]))


def are_clipped(precision: str, algorithm: str) -> bool:
    """Check for an algorithm that cuts outliers.

    The entropy method assumes the even levels of int8. The steps of fp8 grow with the value, so it
    loses nothing by covering the largest one.
    """
    return algorithm != "minmax" and (precision, algorithm) != ("fp8", "entropy")


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
