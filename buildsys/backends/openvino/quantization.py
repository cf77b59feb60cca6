"""int8 quantization by NNCF."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openvino as ov

from buildsys.backends.calibration_batches import read_finite_batches
from buildsys.backends.interface import BuildRequest
from buildsys.errors import StageError, Unavailable

_PRESETS = {"performance": "PERFORMANCE", "mixed": "MIXED"}


def quantize(model: ov.Model, request: BuildRequest) -> ov.Model:
    """Return ``model`` with int8 quantizers, from the calibration data of the manifest.

    Raises: Unavailable: NNCF is not installed. StageError: the data or the model do not fit.
    """
    assert request.calibration is not None
    os.environ.setdefault("NNCF_CI", "1")  # no telemetry
    try:
        with _without_torch():
            import nncf
    except ImportError as error:
        raise Unavailable(
            f"int8 engines of OpenVINO need NNCF: {error}", "pip install 'buildsys[openvino]'"
        ) from error
    shapes = {
        port.get_any_name(): [size.get_length() if size.is_static else -1 for size in shape]
        for port in model.inputs
        for shape in (port.get_partial_shape(),)
    }
    batches = read_finite_batches(request.calibration.batches, shapes)
    options = request.options
    kind = nncf.ModelType.TRANSFORMER if options["model_type"] == "transformer" else None
    request.progress(f"quantizing with {len(batches)} batches")
    nncf.set_log_level("ERROR")
    preset = getattr(nncf.QuantizationPreset, _PRESETS[options["quantization_preset"]])
    # weights of 7 bits: the engine runs on all processors, and those without VNNI overflow at 8
    advanced = nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE)
    data = nncf.Dataset(batches)
    try:
        with _without_torch():
            quantized: ov.Model = nncf.quantize(
                model,
                data,
                preset=preset,
                subset_size=len(batches),
                model_type=kind,
                advanced_parameters=advanced,
            )
            return quantized
    except (RuntimeError, ValueError, nncf.ValidationError) as error:
        cause = " ".join(str(error).split())[:400]
        problem = f"model {request.model}: NNCF cannot quantize it: {cause}"
        hint = "set quantization_preset: mixed, or use another precision"
        raise StageError(problem, hint) from error


@contextmanager
def _without_torch() -> Iterator[None]:
    """Hide torch from NNCF, which would import it for 3 s."""
    hidden: dict[str, Any] = {} if "torch" in sys.modules else {"torch": None}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
