"""The result file of the reference stage."""

from __future__ import annotations

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict


class GoldenInput(TypedDict):
    """Type and shape of one golden input."""

    dtype: str
    shape: list[int]


class GoldenOutput(GoldenInput):
    """Type, shape and magnitude of one golden output. None: not numeric."""

    max_abs: float | None
    mean_abs: float | None


class GoldenCase(TypedDict):
    """One shape case."""

    dims: dict[str, int]
    inputs: dict[str, GoldenInput]
    outputs: dict[str, GoldenOutput]


class ReferenceResult(ResultHeader, total=False):
    """The golden inputs and outputs of every shape case and further case."""

    cases: dict[str, GoldenCase]
    weights: str  # their origin, in words
    warnings: list[str]  # further cases without golden outputs
