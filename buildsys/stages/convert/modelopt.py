"""Quantization and 16-bit conversion by NVIDIA ModelOpt, an optional extra."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import numpy as np
from onnx import ModelProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import (
    dtype_name,
    first_line,
    load_model,
    save_model,
    tool_errors,
)
from buildsys.onnx_graphs.tensor_types import DTYPES
from buildsys.stages.calibrate.stage import load_batches
from buildsys.stages.convert.quantizers import Selection
from buildsys.stages.convert.stage import Converted
from buildsys.workers.job import Job

_FAILURE = ("ModelOpt cannot convert the graph", "use tool: builtin")
_METHODS = {"entropy": "entropy", "minmax": "max"}  # of int8; fp8 always has "max"


def quantize_by_modelopt(job: Job, model: ModelProto, selection: Selection) -> ModelProto:
    """Insert ModelOpt's quantizers for TensorRT at the selected nodes.

    ModelOpt measures the ranges itself, on the calibration batches.
    Raises: StageError: it is not installed, or fails.
    """
    inputs = {port.name: port.type.tensor_type.elem_type for port in model.graph.input}
    dtypes = {name: dtype_name(elem_type) for name, elem_type in inputs.items()}
    batches = list(load_batches(job.inputs["batches"], dtypes))
    data = {name: np.concatenate([batch[name].values() for batch in batches]) for name in dtypes}
    shapes = (f"{name}:{'x'.join(map(str, batches[0][name].shape))}" for name in dtypes)
    precision, algorithm = job.options["precision"], job.options["quantize"]["algorithm"]
    operators = {node.op_type for node in model.graph.node if node.name in selection.chosen}
    quantization = _import("modelopt.onnx.quantization")
    with TemporaryDirectory(dir=job.outputs["result"].parent) as scratch, tool_errors(*_FAILURE):
        source, target = Path(scratch) / "model.onnx", Path(scratch) / "quantized.onnx"
        save_model(model, source)
        quantization.quantize(
            str(source),
            quantize_mode=precision,
            calibration_data=data,
            calibration_method="max" if precision == "fp8" else _METHODS[algorithm],
            calibration_shapes=",".join(shapes),
            calibration_eps=["cpu"],
            op_types_to_quantize=sorted(operators),
            nodes_to_exclude=list(selection.skipped) or None,
            high_precision_dtype="fp32",
            output_path=str(target),
        )
        return load_model(target)


def convert(job: Job, in_fp32: Sequence[str], golden: object) -> Converted:  # noqa: ARG001
    """Convert the graph to 16 bits by AutoCast; inputs and outputs keep their types.

    Raises: StageError: ModelOpt is not installed, or fails, or converts nothing.
    """
    source, precision = job.inputs["model"], job.options["precision"]
    job.progress(f"converting to {DTYPES[precision]} with ModelOpt AutoCast")
    autocast = _import("modelopt.onnx.autocast")
    with tool_errors(*_FAILURE):
        model: ModelProto = autocast.convert_to_mixed_precision(
            str(source), low_precision_type=precision, keep_io_types=True
        )
    if all(node.op_type != "Cast" for node in model.graph.node):
        raise StageError("ModelOpt AutoCast kept all nodes in float32", "use tool: builtin")
    return Converted(model, {}, [])


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        problem = f"ModelOpt is not installed, or lacks a package: {first_line(error)}"
        raise StageError(problem, "pip install 'buildsys[quantize]'") from error
