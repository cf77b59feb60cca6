"""int8 quantization of captured programs by PyTorch (pt2e)."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import torch

from buildsys.backends.calibration_batches import read_finite_batches
from buildsys.backends.interface import BuildRequest
from buildsys.errors import StageError, Unavailable


def quantize(
    program: torch.export.ExportedProgram, ports: dict[str, Any], request: BuildRequest
) -> torch.export.ExportedProgram:
    """Return ``program`` with int8 quantizers, from the calibration data of the manifest.

    Raises: Unavailable: torchao is not installed. StageError: the data or the program do not fit.
    """
    assert request.calibration is not None
    try:
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
            XNNPACKQuantizer,
            get_symmetric_quantization_config,
        )
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    except ImportError as error:
        raise Unavailable(
            f"int8 engines of ExecuTorch need torchao: {error}",
            "pip install 'buildsys[executorch]'",
        ) from error
    shapes = {
        port["name"]: [-1 if isinstance(size, str) else size for size in port["shape"]]
        for port in ports["inputs"]
    }
    batches = [
        tuple(torch.from_numpy(np.array(array)) for array in batch.values())
        for batch in read_finite_batches(request.calibration.batches, shapes)
    ]
    config = get_symmetric_quantization_config(is_per_channel=request.options["per_channel"])
    quantizer: Any = XNNPACKQuantizer().set_global(config)
    dims = [
        {
            axis: torch.export.Dim.DYNAMIC(min=span["min"], max=span["max"])
            for axis, size in enumerate(port["shape"])
            if isinstance(size, str)
            for span in (request.dims[size],)
        }
        for port in ports["inputs"]
    ]
    request.progress(f"quantizing with {len(batches)} batches")
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # on torchao's own code
            prepared = prepare_pt2e(program.module(), quantizer)
            for number, tensors in enumerate(batches):
                request.count(number, len(batches), "batches")
                prepared(*tensors)
            quantized = convert_pt2e(prepared)
            shapes_of = inspect.signature(quantized.forward).bind(*dims).arguments
            example = tuple(map(_at_least_two, batches[0], dims))
            return torch.export.export(
                quantized, example, dynamic_shapes=dict(shapes_of), strict=False
            )
    except Exception as error:  # of any class
        cause = " ".join(str(error).split())[:300]
        text = f"model {request.model}: PyTorch cannot quantize it: {type(error).__name__}: {cause}"
        raise StageError(text, "the log has the complete message") from error


def _at_least_two(tensor: torch.Tensor, axes: dict[int, Any]) -> torch.Tensor:
    """Return an example whose dynamic sizes are not 1: torch.export fixes those."""
    for axis in axes:
        if tensor.shape[axis] == 1:
            tensor = tensor.repeat_interleave(2, dim=axis)
    return tensor
