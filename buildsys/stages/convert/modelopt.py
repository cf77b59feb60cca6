"""Quantization and 16-bit conversion by NVIDIA ModelOpt, an optional extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from onnx import ModelProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import dtype_name, first_line, load_model, save_model
from buildsys.stages.calibrate.batches import load_batches
from buildsys.stages.convert.quantizers import Selection
from buildsys.workers.job import Job

INSTALL = "pip install 'buildsys[quantize]'"
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
    with TemporaryDirectory(dir=job.outputs["result"].parent) as scratch, _one_error("quantize"):
        source, target = Path(scratch) / "model.onnx", Path(scratch) / "quantized.onnx"
        save_model(model, source)
        import_module("modelopt.onnx.quantization").quantize(
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


def autocast(source: Path, precision: str) -> ModelProto:
    """Convert the graph of ``source`` to ``fp16`` or ``bf16``; inputs and outputs keep their types.

    Raises: StageError: ModelOpt is not installed, or fails.
    """
    with _one_error("convert"):
        model: ModelProto = import_module("modelopt.onnx.autocast").convert_to_mixed_precision(
            str(source), low_precision_type=precision, keep_io_types=True
        )
    return model


@contextmanager
def _one_error(action: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        problem = f"ModelOpt is not installed, or lacks a package: {first_line(error)}"
        raise StageError(problem, INSTALL) from error
    except Exception as error:  # any error of it or its libraries
        problem = f"ModelOpt cannot {action} the graph: {first_line(error)}"
        raise StageError(problem, "use tool: builtin") from error
