"""Conversion to graphs that only ONNX Runtime runs; none needs calibration data.

They are fused by ONNX Runtime's transformers optimizer, have weights in int4, or quantize
activations at run time.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from onnx import ModelProto, helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import (
    load_model,
    operator_counts,
    opsets,
    save_model,
    tool_errors,
)
from buildsys.stages.common.graph_runs import changed_counts
from buildsys.stages.common.node_patterns import check_patterns, load_named_model, matching_pattern
from buildsys.stages.convert.stage import Converted
from buildsys.workers.job import Job

_MICROSOFT = "com.microsoft"
_OPERATORS = {"int4": ("MatMul", "Gemm"), "int8": ("MatMul", "Gemm", "Attention")}
_OF_GEMM = "_MatMul"  # suffix of the product that both tools make of a Gemm
_RESULTS = {  # what the tools write, per kind of quantization
    "int4": ("com.microsoft::MatMulNBits",),
    "int8": ("MatMulInteger", "ConvInteger", "com.microsoft::QAttention"),
}


def convert(job: Job, in_fp32: Sequence[str], golden: object) -> Converted:  # noqa: ARG001
    """Fuse or quantize the graph.

    Raises: StageError: no node is fused or quantized, or the tool fails.
    """
    precision, folder = job.options["precision"], job.outputs["model"].parent
    converted = Converted(load_named_model(job.inputs["model"]), {}, [])
    if "optimize" in job.options:
        job.progress(f"fusing {len(converted.model.graph.node)} nodes")
        converted = _fuse(converted.model, job.options["optimize"], folder)
    if section := job.options.get("quantize_weights"):
        job.progress(f"quantizing weights to {precision}")
        quantized = _quantize(converted.model, precision, section, folder)
        figures = {**converted.figures, **quantized.figures}
        converted = Converted(quantized.model, figures, [*quantized.remedies, *converted.remedies])
    return converted


def _fuse(model: ModelProto, options: Mapping[str, Any], folder: Path) -> Converted:
    """Fuse attention, normalization and activation nodes."""
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    kind, before = options["model_type"], operator_counts(model)
    fusions = FusionOptions(kind)
    for name in options["disable"]:
        setattr(fusions, f"enable_{name}", False)
    hint = "choose the model_type of the network: the optimizer expects graphs as they are exported"
    keep_graph = ("simplify: {tool: none}",)
    with TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / "model.onnx"
        save_model(model, path)
        sizes = options["num_heads"], options["hidden_size"]
        with tool_errors(
            f"the transformers optimizer fails for model_type {kind}", hint, keep_graph
        ):
            # its opt_level comes when the engine is built
            fused: ModelProto = optimize_model(str(path), kind, *sizes, fusions, opt_level=0).model
    if _MICROSOFT not in opsets(fused):
        fused.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))
    _, added = changed_counts(before, operator_counts(fused))
    # constants and casts are only moved
    if not any(op.startswith(_MICROSOFT) or op.endswith("Normalization") for op in added):
        operators = ", ".join(list(before)[:6])
        problem = f"the transformers optimizer fused no node of this graph as model_type {kind}"
        raise StageError(f"{problem}: its operators are {operators}", hint, keep_graph)
    return Converted(fused, {"fused": added}, ["disable fusions in optimize.disable"])


def _quantize(
    model: ModelProto, precision: str, section: Mapping[str, Any], folder: Path
) -> Converted:
    """Quantize the weights."""
    from onnxruntime.quantization.onnx_model import ONNXModel

    check_patterns(
        "quantize_weights.exclude", section["exclude"], [node.name for node in model.graph.node]
    )
    kinds, before = _OPERATORS[precision], operator_counts(model)
    products = [node.name for node in model.graph.node if node.op_type in kinds]
    excluded = [name for name in products if matching_pattern(name, section["exclude"])]
    exclude = [*excluded, *(f"{name}{_OF_GEMM}" for name in excluded)]
    with tool_errors("onnxruntime.quantization fails", "exclude nodes"):
        quantize = _weights_in_int4 if precision == "int4" else _dynamic_int8
        quantized = quantize(model, section, exclude, folder)
        ONNXModel(quantized).clean_initializers()  # Gemm's are replaced by transposed ones
    _, added = changed_counts(before, operator_counts(quantized))
    kernels = {op: added[op] for op in _RESULTS[precision] if op in added}
    if not kernels:
        raise StageError(
            f"no weight of the graph can be quantized to {precision}: it has no matrix product"
            f" with a constant, only {', '.join(list(before)[:6])}",
            "remove the engine, or shorten quantize_weights.exclude",
        )
    left = [n.name.removesuffix(_OF_GEMM) for n in quantized.graph.node if n.op_type in kinds]
    reasons = {
        name: "excluded" if name in excluded else "its second input is not a constant matrix"
        for name in products
        if name in left
    }
    figures = {
        "quantized": [name for name in products if name not in reasons],
        "kept_reasons": reasons,
        "kernels": kernels,
    }
    # only sections of int4 have a block size
    smaller = "a smaller quantize_weights.block_size, " if section.get("block_size", 0) > 16 else ""
    remedies = [f"try {smaller}quantize_weights.exclude for sensitive nodes"]
    return Converted(quantized, figures, remedies)


def _weights_in_int4(
    model: ModelProto, section: Mapping[str, Any], exclude: list[str], _: Path
) -> ModelProto:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.onnx_model import ONNXModel

    plain = ONNXModel(model)
    plain.replace_gemm_with_matmul()  # it quantizes MatMul only
    quantizer = MatMulNBitsQuantizer(
        plain.model,
        bits=4,
        block_size=section["block_size"],
        is_symmetric=section["symmetric"],
        accuracy_level=section["accuracy_level"],
        nodes_to_exclude=exclude,
    )
    quantizer.process()
    quantized: ModelProto = quantizer.model.model
    return quantized


def _dynamic_int8(
    model: ModelProto, section: Mapping[str, Any], exclude: list[str], folder: Path
) -> ModelProto:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with TemporaryDirectory(dir=folder) as scratch:
        target = Path(scratch) / "quantized.onnx"
        quantize_dynamic(
            model,
            target,
            op_types_to_quantize=list(_OPERATORS["int8"]),
            per_channel=section["per_channel"],
            reduce_range=section["reduce_range"],
            weight_type=QuantType.QInt8,
            nodes_to_exclude=exclude,
        )
        return load_model(target)
