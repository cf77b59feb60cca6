"""The sections of a manifest about precisions below fp32: conversion, calibration and quantization."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from buildsys.manifest.schema.base import Spec, TensorName
from buildsys.manifest.schema.network import InputData

QuantizedOperator = Literal[
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "Add",
    "Mul",
    "AveragePool",
    "GlobalAveragePool",
    "MaxPool",
]
DEFAULT_PERCENTILE = 99.99


class ConvertSpec(Spec):
    """What converts to fp16 and bf16."""

    tool: Literal["builtin", "autocast"] = Field(
        "builtin", description="autocast is NVIDIA ModelOpt's."
    )


class CalibrationSpec(Spec):
    """Which values the ranges of an int8 or fp8 network are measured on, and how."""

    data: dict[TensorName, InputData] = Field(
        default_factory=dict,
        description="Values of each input; default: those of `inputs`, where it has data.",
    )
    algorithm: Literal["entropy", "minmax", "percentile"] = "entropy"
    percentile: float = Field(
        DEFAULT_PERCENTILE,
        gt=50,
        le=100,
        description="Share of all values that the range holds, in percent.",
    )
    batches: int = Field(8, ge=1, description="How many batches are run.")
    batch_size: int | None = Field(
        None, ge=1, description="Samples in each; default: `opt` of the first dimension."
    )
    seed: int = Field(0, ge=0, description="Seed of random values.")


class QuantizeSpec(Spec):
    """Where a graph gets quantizers."""

    tool: Literal["onnxruntime", "builtin", "modelopt"] | None = Field(
        None, description="Default: onnxruntime for int8, builtin for fp8."
    )
    per_channel: bool = Field(
        True, description="A scale for each output channel of a weight, not one for all."
    )
    operators: tuple[QuantizedOperator, ...] = Field(
        ("Conv", "ConvTranspose", "Gemm", "MatMul"), min_length=1
    )
    outputs: bool = Field(
        False, description="Quantize what these operators give as well, not only what they take."
    )
    exclude: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="Patterns of the names of nodes that stay as they are, e.g. */head/*."
    )
