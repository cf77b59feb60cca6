"""Sections for precisions below fp32: conversion, calibration and quantization."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from buildsys.manifest.schema.base import Spec, TensorName
from buildsys.manifest.schema.network import InputData

QuantizedOperator = Literal[
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul", "AveragePool", "GlobalAveragePool",
    "MaxPool",
]  # fmt: skip
DEFAULT_PERCENTILE = 99.99


class ConvertSpec(Spec):
    """Conversion to fp16 and bf16."""

    tool: Literal["builtin", "autocast"] = Field(
        "builtin", description="autocast is part of NVIDIA ModelOpt."
    )


class CalibrationSpec(Spec):
    """Data and algorithm for the value ranges of int8 and fp8 networks."""

    data: dict[TensorName, InputData] = Field(
        {}, description="Values by input; default: the data of `inputs`, if given."
    )
    algorithm: Literal["entropy", "minmax", "percentile"] = "entropy"
    percentile: float = Field(
        DEFAULT_PERCENTILE, gt=50, le=100, description="Percentage of values within the range."
    )
    batches: int = Field(8, ge=1, description="Number of batches.")
    batch_size: int | None = Field(
        None, ge=1, description="Samples per batch; default: `opt` of the first dimension."
    )
    seed: int = Field(0, ge=0, description="Seed of random values.")


class QuantizeSpec(Spec):
    """Insertion of quantizers into a graph."""

    tool: Literal["onnxruntime", "builtin", "modelopt"] | None = Field(
        None, description="Default: onnxruntime for int8, builtin for fp8."
    )
    per_channel: bool = Field(True, description="One scale per output channel of a weight.")
    operators: tuple[QuantizedOperator, ...] = Field(
        ("Conv", "ConvTranspose", "Gemm", "MatMul"), min_length=1
    )
    outputs: bool = Field(False, description="Quantize the outputs of these operators as well.")
    exclude: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="Name patterns of nodes to leave in fp32, such as */head/*."
    )
