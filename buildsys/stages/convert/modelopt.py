"""Quantization and 16-bit conversion by NVIDIA ModelOpt, an optional extra."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import first_line, load_model
from buildsys.stages.calibrate.batches import Batch

INSTALL = "pip install 'buildsys[quantize]'"
_METHODS = {"entropy": "entropy", "minmax": "max"}  # of int8; fp8 always has "max"


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
    Raises: StageError: it is not installed, or fails.
    """
    every = list(batches)
    data = {name: np.concatenate([batch[name].values() for batch in every]) for name in every[0]}
    shapes = (f"{name}:{'x'.join(map(str, tensor.shape))}" for name, tensor in every[0].items())
    target = source.with_name("quantized.onnx")
    with _one_error("quantize"):
        import_module("modelopt.onnx.quantization").quantize(
            str(source),
            quantize_mode=precision,
            calibration_data=data,
            calibration_method="max" if precision == "fp8" else _METHODS[options["algorithm"]],
            calibration_shapes=",".join(shapes),
            calibration_eps=["cpu"],
            op_types_to_quantize=list(options["operators"]),
            nodes_to_exclude=list(exclude) or None,
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
        if (error.name or "").partition(".")[0] != "modelopt":
            raise StageError(f"ModelOpt cannot be loaded: {first_line(error)}", INSTALL) from error
        raise StageError("ModelOpt is not installed", INSTALL) from error
    except Exception as error:  # any error of it or its libraries
        problem = f"ModelOpt cannot {action} the graph: {first_line(error)}"
        raise StageError(problem, "use tool: builtin") from error
