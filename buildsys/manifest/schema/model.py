"""The manifest as frozen pydantic models: every field, its default and its meaning.

The JSON Schema that editors use is generated from these models, so a description here is what a user
reads while typing. Nothing in this module touches a file or imports a library that a stage uses.
"""

from __future__ import annotations

from pydantic import Field

from buildsys.manifest.schema.base import (
    AXIS_PATTERN,
    CALLABLE_PATTERN,
    CXX_SOURCE_PATTERN,
    NAME_PATTERN,
    NODE_PATTERN,
    OPERATOR_PATTERN,
    PATTERN_WORDS,
    SHA256_PATTERN,
    TENSOR_PATTERN,
    VARIABLE_PATTERN,
    WORD_PATTERN,
    Bytes,
    Callable,
    Case,
    Dim,
    DimName,
    DType,
    Name,
    Precision,
    Seconds,
    Spec,
    Stage,
    TensorName,
    section,
)
from buildsys.manifest.schema.engines import BACKENDS, Engine, OnnxRuntimeEngine
from buildsys.manifest.schema.network import (
    DATA_KINDS,
    SOURCE_KINDS,
    ConstantData,
    DimSpec,
    ImagesData,
    InputData,
    InputSpec,
    NpzData,
    OnnxSource,
    OutputSpec,
    PythonData,
    PythonSource,
    RandomData,
    Scalar,
    Source,
    TorchvisionSource,
    TorchvisionWeights,
    WeightsFile,
)
from buildsys.manifest.schema.operators import (
    LIBRARY_KINDS,
    PLUGIN_KINDS,
    BuiltLibrary,
    FunctionPerBackend,
    GivenLibrary,
    OperatorFunction,
    OperatorLibrary,
    OperatorPlugin,
    OperatorSpec,
    OperatorUse,
    PluginLibrary,
    PythonPlugin,
)
from buildsys.manifest.schema.project import CacheSpec, ProjectSpec, ToolchainSpec
from buildsys.manifest.schema.quantization import (
    CalibrationSpec,
    ConvertSpec,
    QuantizedOperator,
    QuantizeSpec,
)
from buildsys.manifest.schema.stages import (
    BenchSpec,
    Bf16Tolerance,
    EngineTolerance,
    ExportSpec,
    Fp8Tolerance,
    Fp16Tolerance,
    Fp32Tolerance,
    Int8Tolerance,
    Modules,
    ReportSpec,
    SimplifySpec,
    Tolerance,
    ValidateSpec,
    VerifySpec,
)
from buildsys.manifest.schema.surgery import (
    STEP_KINDS,
    CastStep,
    Cut,
    CutStep,
    FixDimsStep,
    FreeDimsStep,
    FunctionStep,
    NewInput,
    Reference,
    RemoveStep,
    RenameStep,
    Replacement,
    ReplaceStep,
    SurgeryStep,
    TensorSpec,
)
from buildsys.manifest.schema.symbolics import PythonFile, SymbolicSpec, TranslationSpec
from buildsys.manifest.schema.tensorrt import (
    ComputeCapability,
    LayerPrecision,
    OtherFlag,
    RtxFlag,
    ShapeRange,
    ShapeValues,
    TacticSource,
    TensorFormat,
    TensorIo,
    TensorRtEngine,
    TensorRtRtxEngine,
    TimingCacheSpec,
    ValueRange,
)

__all__ = [
    "AXIS_PATTERN",
    "BACKENDS",
    "CALLABLE_PATTERN",
    "CXX_SOURCE_PATTERN",
    "DATA_KINDS",
    "LIBRARY_KINDS",
    "NAME_PATTERN",
    "NODE_PATTERN",
    "OPERATOR_PATTERN",
    "PATTERN_WORDS",
    "PLUGIN_KINDS",
    "SHA256_PATTERN",
    "SOURCE_KINDS",
    "STEP_KINDS",
    "TENSOR_PATTERN",
    "VARIABLE_PATTERN",
    "WORD_PATTERN",
    "BenchSpec",
    "Bf16Tolerance",
    "BuiltLibrary",
    "Bytes",
    "CacheSpec",
    "CalibrationSpec",
    "Callable",
    "Case",
    "CastStep",
    "ComputeCapability",
    "ConstantData",
    "ConvertSpec",
    "Cut",
    "CutStep",
    "DType",
    "Dim",
    "DimName",
    "DimSpec",
    "Engine",
    "EngineTolerance",
    "ExportSpec",
    "FixDimsStep",
    "Fp8Tolerance",
    "Fp16Tolerance",
    "Fp32Tolerance",
    "FreeDimsStep",
    "FunctionPerBackend",
    "FunctionStep",
    "GivenLibrary",
    "ImagesData",
    "InputData",
    "InputSpec",
    "Int8Tolerance",
    "LayerPrecision",
    "ModelSpec",
    "Modules",
    "Name",
    "NewInput",
    "NpzData",
    "OnnxRuntimeEngine",
    "OnnxSource",
    "OperatorFunction",
    "OperatorLibrary",
    "OperatorPlugin",
    "OperatorSpec",
    "OperatorUse",
    "OtherFlag",
    "OutputSpec",
    "PluginLibrary",
    "Precision",
    "ProjectSpec",
    "PythonData",
    "PythonFile",
    "PythonPlugin",
    "PythonSource",
    "QuantizeSpec",
    "QuantizedOperator",
    "RandomData",
    "Reference",
    "RemoveStep",
    "RenameStep",
    "ReplaceStep",
    "Replacement",
    "ReportSpec",
    "RtxFlag",
    "Scalar",
    "Seconds",
    "ShapeRange",
    "ShapeValues",
    "SimplifySpec",
    "Source",
    "Spec",
    "Stage",
    "SurgeryStep",
    "SymbolicSpec",
    "TacticSource",
    "TensorFormat",
    "TensorIo",
    "TensorName",
    "TensorRtEngine",
    "TensorRtRtxEngine",
    "TensorSpec",
    "TimingCacheSpec",
    "Tolerance",
    "ToolchainSpec",
    "TorchvisionSource",
    "TorchvisionWeights",
    "TranslationSpec",
    "ValidateSpec",
    "ValueRange",
    "VerifySpec",
    "WeightsFile",
]


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
