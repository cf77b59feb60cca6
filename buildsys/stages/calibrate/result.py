"""The result file of the calibrate stage."""

from __future__ import annotations

from typing import Any

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict


class CalibrationData(TypedDict, total=False):
    """The origin of one input's calibration data."""

    kind: str
    shape: list[int]
    samples: int
    preprocessing: Any
    files: list[str]


class CalibrateResult(ResultHeader, total=False):
    """The measured ranges and their data."""

    algorithm: str
    percentile: float
    batches: int
    dims: dict[str, int]
    data: dict[str, CalibrationData]
    tensors: int
    warnings: list[str]
