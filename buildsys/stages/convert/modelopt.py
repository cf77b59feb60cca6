"""Quantization and 16-bit conversion by NVIDIA ModelOpt, an optional extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from onnx import ModelProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import first_line, load_model
from buildsys.stages.calibrate.batches import Batch

INSTALL = "pip install 'buildsys[quantize]'"
_METHODS = {
    "int8": {"entropy": "entropy", "minmax": "max"},
    "fp8": {"entropy": "max", "minmax": "max"},
}


def quantize_by_modelopt(
    source: Path,
    precision: str,
    batches: Iterable[Batch],
    options: Mapping[str, Any],
    exclude: Sequence[str],
) -> ModelProto:
    """Insert ModelOpt's quantizers for TensorRT into the graph of ``source``.

    ``options`` are the manifest's section ``quantize`` plus the calibration's ``algorithm``.
    ModelOpt measures the ranges itself.
    Raises: StageError: it is not installed, does not have the algorithm, or fails.
    """
    method = _METHODS[precision].get(options["algorithm"])
    if method is None:
        raise StageError(
            f"ModelOpt has no calibration algorithm {options['algorithm']}", "use entropy or minmax"
        )
    library = _library("modelopt.onnx.quantization")
    every = list(batches)
    data = {name: np.concatenate([batch[name].values() for batch in every]) for name in every[0]}
    shapes = ",".join(
        f"{name}:{'x'.join(map(str, tensor.shape))}" for name, tensor in every[0].items()
    )
    target = source.with_name("quantized.onnx")
    try:
        library.quantize(
            str(source),
            quantize_mode=precision,
            calibration_data=data,
            calibration_method=method,
            calibration_shapes=shapes,
            calibration_eps=["cpu"],
            op_types_to_quantize=list(options["operators"]),
            nodes_to_exclude=list(exclude) or None,
            high_precision_dtype="fp32",
            output_path=str(target),
        )
    except Exception as error:  # any error of it or its libraries
        raise StageError(
            f"ModelOpt cannot quantize the graph: {first_line(error)}", "use another tool"
        ) from error
    return load_model(target)


def autocast(source: Path, precision: str) -> ModelProto:
    """Convert the graph of ``source`` to ``fp16`` or ``bf16`` by AutoCast.

    Inputs and outputs keep their types.

    Raises: StageError: it is not installed, or fails.
    """
    library = _library("modelopt.onnx.autocast")
    try:
        model: ModelProto = library.convert_to_mixed_precision(
            str(source), low_precision_type=precision, keep_io_types=True
        )
    except Exception as error:  # any error of it or its libraries
        raise StageError(
            f"ModelOpt cannot convert the graph: {first_line(error)}", "use tool: builtin"
        ) from error
    return model


def _library(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        missing = (
            isinstance(error, ModuleNotFoundError)
            and (error.name or "").partition(".")[0] == "modelopt"
        )
        why = "is not installed" if missing else f"cannot be loaded: {first_line(error)}"
        raise StageError(f"ModelOpt {why}", INSTALL) from error
