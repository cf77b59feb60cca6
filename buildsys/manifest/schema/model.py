"""The manifest of one model as frozen pydantic models.

The JSON Schema for editors is generated from these models, so users read a field's description while
typing. Nothing here reads a file or imports a library used by a stage.
"""

from __future__ import annotations

from pydantic import Field

from buildsys.manifest.schema.base import DimName, Name, Seconds, Spec, Stage, TensorName, section
from buildsys.manifest.schema.engines import Engine
from buildsys.manifest.schema.network import DimSpec, InputSpec, OutputSpec, Source
from buildsys.manifest.schema.operators import OperatorSpec
from buildsys.manifest.schema.quantization import CalibrationSpec, ConvertSpec, QuantizeSpec
from buildsys.manifest.schema.stages import (
    BenchSpec,
    ExportSpec,
    ReportSpec,
    SimplifySpec,
    ValidateSpec,
    VerifySpec,
)
from buildsys.manifest.schema.surgery import SurgeryStep
from buildsys.manifest.schema.symbolics import SymbolicSpec, TranslationSpec


class ModelSpec(Spec):
    """One model after extends, matrix, defaults and engine profiles: what its targets finally use."""

    model: Name = Field(description="Name of the model in targets and paths.")
    description: str = Field("", description="What the model is, for the report.")
    source: Source = Field(description="Where the network comes from: torchvision, python or onnx.")
    inputs: dict[TensorName, InputSpec] = Field(
        min_length=1, description="In the order of the graph's inputs."
    )
    outputs: dict[TensorName, OutputSpec] = Field(
        default_factory=dict, description="In order; default: as the model returns them."
    )
    dims: dict[DimName, DimSpec] = Field(
        default_factory=dict, description="Ranges of the dynamic dimensions."
    )
    ops: tuple[OperatorSpec, ...] = Field(
        (), description="Custom operators and what implements them."
    )
    export: ExportSpec = section()
    symbolics: tuple[SymbolicSpec, ...] = Field(
        (), description="Operators taught to exporter: torchscript."
    )
    translations: tuple[TranslationSpec, ...] = Field(
        (), description="Operators taught to exporter: dynamo."
    )
    surgery: tuple[SurgeryStep, ...] = Field(
        (), description="Steps that change the graph, in this order."
    )
    simplify: SimplifySpec = section()
    convert: ConvertSpec = section()
    calibration: CalibrationSpec | None = Field(
        None, description="Data and algorithm that int8 and fp8 need."
    )
    quantize: QuantizeSpec = section()
    validation: ValidateSpec = section(alias="validate")
    engines: tuple[Engine, ...] = Field((), description="Engines to build, verify and time.")
    verify: VerifySpec = section()
    bench: BenchSpec = section()
    report: ReportSpec = section()
    timeout: dict[Stage, Seconds] = Field(
        default_factory=dict, description="Limit per stage, e.g. {export: 10min}."
    )
