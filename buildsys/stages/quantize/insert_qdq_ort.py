"""Insertion of quantize/dequantize pairs by onnxruntime.quantization.

TensorRT rejects its defaults (zero points other than 0, int32 biases). These settings work in both
TensorRT and ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import TensorData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import add_infer_metadata

from buildsys.onnx_graphs.tensor_types import element_types
from buildsys.stages.quantize.node_selection import Selection


def insert_by_onnxruntime(
    model: ModelProto,
    selection: Selection,
    limits: Mapping[str, float],
    *,
    per_channel: bool,
    outputs: bool,
) -> ModelProto:
    """Return ``model`` with int8 quantizers.

    ``limits`` maps each tensor to the magnitude of the value 127.
    """
    operators = {node.op_type for node in model.graph.node if node.name in selection.chosen}
    betas = {node.name: beta.f for node, beta in _betas(model)}
    known = {
        value.name for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)
    }
    for name, elem_type in element_types(model).items():  # of intermediate tensors
        if elem_type == TensorProto.FLOAT and name not in known:
            model.graph.value_info.append(helper.make_tensor_value_info(name, elem_type, None))
    add_infer_metadata(model)  # else it infers the types again through a file
    quantizer = QDQQuantizer(
        model,
        per_channel,
        False,  # full int8 range: only CPUs without VNNI overflow
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
