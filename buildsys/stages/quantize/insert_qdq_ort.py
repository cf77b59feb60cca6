"""The same through onnxruntime.quantization, with ranges that were measured before.

Its defaults are rejected by TensorRT (zero points that are not zero, int32 biases). Everything here is the set of
settings that TensorRT and ONNX Runtime both take.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, TensorProto, helper
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import TensorData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import add_infer_metadata

from buildsys.onnx_graphs.rounding.tensor_types import element_types
from buildsys.stages.quantize.node_selection import Selection


def insert_by_onnxruntime(
    model: ModelProto,
    selection: Selection,
    limits: Mapping[str, float],
    *,
    per_channel: bool,
    outputs: bool,
) -> ModelProto:
    """Return ``model`` with int8 quantizers. ``limits``: tensor -> the magnitude that becomes 127."""
    operators = {node.op_type for node in model.graph.node if node.name in selection.chosen}
    betas = _betas(model)
    _declare_types(model)
    add_infer_metadata(model)  # or it would infer the types again, through a file
    quantizer = QDQQuantizer(
        model,
        per_channel,
        False,  # all of int8's range: only old processors without VNNI overflow
        QuantType.QInt8,
        QuantType.QInt8,
        {name: _tensor_data(limit) for name, limit in limits.items() if limit > 0.0},
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
    _restore_betas(result, betas)
    return result


def _tensor_data(limit: float) -> TensorData:
    return TensorData(lowest=np.float32(-limit), highest=np.float32(limit))


def _declare_types(model: ModelProto) -> None:
    """Add the types of inner tensors, which the quantizer looks up."""
    known = {
        value.name for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)
    }
    for name, elem_type in element_types(model).items():
        if elem_type == TensorProto.FLOAT and name not in known:
            model.graph.value_info.append(helper.make_tensor_value_info(name, elem_type, None))


def _betas(model: ModelProto) -> dict[str, float]:
    """Return the factors of biases, which the quantizer sets to 1 also where it leaves the bias alone."""
    return {
        node.name: attribute.f
        for node in model.graph.node
        if node.op_type == "Gemm"
        for attribute in node.attribute
        if attribute.name == "beta"
    }


def _restore_betas(model: ModelProto, betas: Mapping[str, float]) -> None:
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Gemm" and attribute.name == "beta" and node.name in betas:
                attribute.f = betas[node.name]
