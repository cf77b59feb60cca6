"""Convert a simplified graph to the precision of an engine: typed ONNX, as strongly typed builders want it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from onnx import ModelProto, TensorProto, version_converter

from buildsys.errors import CheckFailed, StageError
from buildsys.onnx_graph import (
    INLINE_LIMIT,
    check_file,
    dtype_name,
    file_bytes,
    first_line,
    load_model,
    opsets,
    save_model,
)
from buildsys.stages.precision import Conversion, convert_precision
from buildsys.worker.job import Job, StageResult

_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
_BF16_OPSET, _BF16_IR_VERSION = 22, 10  # the first opset whose Conv and pooling take bfloat16
_FLUSHED_WARNING = 0.01  # share of all weights


def run(job: Job) -> StageResult:
    """Write the graph with its operators in ``precision``; its inputs and outputs stay as they are.

    Raises: StageError: nothing that does heavy work can be converted.
    """
    precision = job.options["precision"]
    source, target = job.inputs["model"], job.outputs["model"]
    model = load_model(source)
    warnings: list[str] = []
    if precision == "bf16":
        model, warnings = _raise_opset(model)
    job.progress(f"converting {len(model.graph.node)} nodes to {_DTYPES[precision]}")
    found = convert_precision(model, _DTYPES[precision])
    save_model(model, target)
    try:
        check_file(target, f"the graph converted to {precision}")
    except StageError as error:
        raise CheckFailed(error.problem, error.hint) from error
    figures = _figures(model, found)
    sizes = {"bytes_before": file_bytes(source), "bytes_after": file_bytes(target)}
    return StageResult(figures={"precision": precision, **figures, **sizes, "warnings": [*warnings, *_warnings(found)]})


def _raise_opset(model: ModelProto) -> tuple[ModelProto, list[str]]:
    """Return the model at an opset in which ONNX has bfloat16 for the operators of networks, if it converts."""
    version = opsets(model).get("ai.onnx", 1)
    if version >= _BF16_OPSET:
        return model, []
    if len(model.functions) > 0:
        return model, [f"opset {version} stays: onnx.version_converter drops local functions"]
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > INLINE_LIMIT:
        return model, [f"opset {version} stays: onnx.version_converter takes graphs below 2 GB"]
    try:
        raised = version_converter.convert_version(model, _BF16_OPSET)
    except (version_converter.ConvertError, RuntimeError, ValueError) as error:
        return model, [f"opset {version} stays, and with it the operators that lack bfloat16: {first_line(error)}"]
    raised.ir_version = max(raised.ir_version, _BF16_IR_VERSION)
    return raised, [f"opset {version} was raised to {_BF16_OPSET}, the first that has bfloat16 convolutions"]


def _figures(model: ModelProto, found: Conversion) -> dict[str, Any]:
    stored = Counter(dtype_name(t.data_type) for t in model.graph.initializer if t.data_type != TensorProto.UNDEFINED)
    return {
        "method": "by the ONNX schemas of the opset, node by node; inputs and outputs keep their types",
        "opset": opsets(model)["ai.onnx"],
        "initializers": dict(sorted(stored.items())),
        "converted": found.converted,
        "casts": found.casts,
        "kept_fp32": list(found.kept),
        "kept_reasons": found.kept,
        "flushed_to_zero": {"values": found.flushed, "of": found.values},
    }


def _warnings(found: Conversion) -> list[str]:
    warnings = [f"{problem}; its nodes stay in float32" for problem in found.problems.values()]
    if found.flushed > _FLUSHED_WARNING * found.values:
        warnings.append(f"{found.flushed} of {found.values} non-zero weights became zero")
    return warnings
