"""Engines of ONNX Runtime, TensorRT 8.6, 10 and 11, and TensorRT-RTX."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from buildsys.manifest.schema.base import (
    Bytes,
    Callable,
    Digest,
    DType,
    Name,
    OneOf,
    Precision,
    Spec,
    TensorName,
    fields_of,
)
from buildsys.manifest.schema.gates import GatesSpec
from buildsys.manifest.schema.stages import EngineTolerance

BACKENDS = ("onnxruntime", "tensorrt", "tensorrt_rtx")
Sizes = tuple[Annotated[int, Field(ge=0)], ...]
Integers = tuple[int, ...]
OtherFlag = Literal[
    "strict_nans", "editable_timing_cache", "disable_compilation_cache", "monitor_memory",
    "distributive_independence", "debug",
]  # fmt: skip
RtxFlag = Literal[
    "tf32", "sparse_weights", "direct_io", "gpu_fallback", "refit", "refit_individual",
    "strip_plan", "weight_streaming", "strict_nans", "editable_timing_cache",
    "disable_compilation_cache", "monitor_memory", "distributive_independence",
    "require_user_allocation", "version_compatible", "exclude_lean_runtime", "refit_identical",
    "debug",
]  # fmt: skip
ComputeCapability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1", "current"]
TacticSource = Literal["cublas", "cublas_lt", "cudnn", "edge_mask_convolutions", "jit_convolutions"]
TensorFormat = Literal[
    "linear", "chw2", "chw4", "chw16", "chw32", "hwc", "hwc8", "hwc16", "dhwc", "dhwc8", "cdhw32",
    "dla_linear", "dla_hwc4",
]  # fmt: skip


class EngineBase(Spec):
    """The fields of every engine."""

    name: Name = Field(description="Name of the engine in targets and paths.")
    precision: Precision = Field("fp32", description="Precision of the graph or of the layers.")
    required: bool = Field(False, description="Fail the build if this engine cannot be built.")
    tolerance: EngineTolerance | None = Field(
        None, description="Limits of this engine, overriding those of `verify`."
    )
    toolchain: Name | None = Field(None, description="Toolchain of project.yaml to build and run.")
    gates: GatesSpec | None = Field(
        None, description="Gates of this engine, instead of those of the model."
    )


class OnnxRuntimeEngine(EngineBase):
    """An ONNX Runtime session, saved as an optimized model."""

    backend: Literal["onnxruntime"] = Field(description="ONNX Runtime.")
    provider: Literal["cpu", "cuda"] = Field("cpu", description="Execution provider.")
    intra_op_threads: int = Field(0, ge=0, description="0: one per core.")
    inter_op_threads: int = Field(
        1, ge=1, description="Concurrent operators, with execution_mode: parallel."
    )
    graph_optimization_level: Literal["disable", "basic", "extended", "all"] = Field(
        "all", description="Optimization of the graph; lower if the engine cannot be loaded again."
    )
    execution_mode: Literal["sequential", "parallel"] = Field(
        "sequential", description="Order of operators."
    )
    spinning: bool = Field(True, description="Let threads spin: lower latency, a busy core.")
    session_config: dict[str, str] = Field({}, description="Session config entries by key.")


class ShapeRange(Spec):
    """The shapes of one input in an optimization profile."""

    min: Sizes = Field(description="Smallest shape.")
    opt: Sizes = Field(description="Shape that the engine is tuned for.")
    max: Sizes = Field(description="Largest shape.")


class ValueRange(Spec):
    """The values of one input in an optimization profile, one per element."""

    min: Integers = Field(description="Smallest values.")
    opt: Integers = Field(description="Values that the engine is tuned for.")
    max: Integers = Field(description="Largest values.")


class ShapeValues(Spec):
    """An input with values determining shapes inside the network."""

    values: ValueRange = Field(description="The values, one per element of the input.")


ProfileRange = Annotated[
    ShapeRange | ShapeValues,
    OneOf(("shape", "values"), choose=lambda v: "values" if "values" in fields_of(v) else "shape"),
]


class TensorIo(Spec):
    """Layout and type of an input or output in device memory."""

    format: TensorFormat | None = Field(None, description="Memory layout; default: linear.")
    dtype: DType | None = Field(None, description="Type in the engine; default: the graph's.")


class LayerPrecision(Spec):
    """The precision of layers selected by name."""

    layers: str = Field(min_length=1, description="Name pattern with * and ?, such as /layer4/*.")
    precision: Literal["fp32", "fp16", "bf16", "int8"] = Field(
        description="Precision of the layers."
    )


class TimingCacheSpec(Spec):
    """The timings used for building an engine."""

    pin: Digest = Field(description="Digest of the timing cache, from an engine.json.")


class TensorRtBase(EngineBase):
    """The fields of all TensorRT builders."""

    profiles: tuple[dict[str, ProfileRange], ...] | None = Field(
        None, description="Optimization profiles by input; default: one from `dims`."
    )
    builder_optimization_level: int = Field(
        3, ge=0, le=5, description="Effort of the builder, 0 to 5."
    )
    workspace: Bytes | None = Field(None, description="Workspace memory limit, such as 4GiB.")
    tactic_shared_memory: Bytes | None = Field(
        None, description="Shared memory limit of a tactic; not on 8.6."
    )
    tiling_optimization_level: Literal["none", "fast", "moderate", "full"] = Field(
        "none", description="Effort of the search for tilings; not on 8.6."
    )
    l2_limit_for_tiling: Bytes | None = Field(None, description="L2 cache for tilings; not on 8.6.")
    max_aux_streams: int | None = Field(None, ge=0, description="Auxiliary streams.")
    avg_timing_iterations: int = Field(1, ge=1, description="Runs per tactic while timing.")
    max_threads: int | None = Field(None, ge=1, description="Threads of the builder.")
    io: dict[TensorName, TensorIo] = Field(
        {}, description="Layout and type of inputs and outputs in device memory."
    )
    network: Callable | None = Field(
        None, description="FILE.py:NAME, called with network and builder config before the build."
    )
    precision_share: float = Field(
        0.1, ge=0, le=1, description="Minimum share of layers in the engine's precision."
    )


class TensorRtEngine(TensorRtBase):
    """A TensorRT 8.6, 10 or 11 engine for the GPU building it."""

    backend: Literal["tensorrt"] = Field(description="TensorRT.")
    typing: Literal["auto", "weak", "strong"] = Field(
        "auto", description="weak: the builder chooses layer types; strong: the graph does."
    )
    quantization: Literal["auto", "implicit", "explicit"] = Field(
        "auto", description="implicit: the builder calibrates; explicit: quantizers of the graph."
    )
    tf32: bool = Field(True, description="Allow TF32 (10 bits of mantissa) in fp32 layers.")
    profiling_verbosity: Literal["layer_names_only", "none", "detailed"] = Field(
        "detailed", description="Below detailed, the engine's precisions cannot be inspected."
    )
    tactic_dram: Bytes | None = Field(None, description="Device memory limit of a tactic.")
    tactic_sources: tuple[TacticSource, ...] | None = Field(
        None, description="Allowed sources of tactics; default: TensorRT's."
    )
    sparsity: bool = Field(False, description="Use sparse kernels for 2:4 sparse weights.")
    refit: bool = Field(False, description="Allow replacing the weights later.")
    refit_identical: bool = Field(False, description="By equal values only; not on 8.6.")
    refit_individual: bool = Field(False, description="Only those marked by the hook; not on 8.6.")
    strip_plan: bool = Field(False, description="Leave the weights out of the engine; not on 8.6.")
    version_compatible: bool = Field(False, description="Run on later versions as well.")
    exclude_lean_runtime: bool = Field(
        False, description="Leave the lean runtime out of a version-compatible engine."
    )
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = Field(
        "none", description="Other supported GPUs; same_compute_capability: not on 8.6."
    )
    weight_streaming: bool = Field(
        False, description="Allow weights in host memory; strong typing, not on 8.6."
    )
    dla_core: int | None = Field(None, ge=0, description="Deep learning accelerator to build for.")
    gpu_fallback: bool = Field(False, description="Run layers unsupported by the DLA on the GPU.")
    dla_managed_sram: Bytes | None = Field(None, description="Limit of the DLA's managed SRAM.")
    dla_local_dram: Bytes | None = Field(None, description="Limit of the DLA's local DRAM.")
    dla_global_dram: Bytes | None = Field(None, description="Limit of the DLA's global DRAM.")
    direct_io: bool = Field(False, description="Refuse formats of `io` that need a copy.")
    layer_precisions: tuple[LayerPrecision, ...] = Field(
        (), description="Precisions of single layers, later entries win; weak typing only."
    )
    precision_constraints: Literal["obey", "prefer"] = Field(
        "obey", description="obey: fail if no kernel has a layer's precision."
    )
    flags: dict[OtherFlag, bool] = Field({}, description="Other builder flags; not on 8.6.")
    timing_cache: TimingCacheSpec | None = Field(
        None, description="Timings to build with; default: those shared by builds here."
    )


class TensorRtRtxEngine(TensorRtBase):
    """A TensorRT-RTX engine: strongly typed, with the precision of its ONNX graph."""

    backend: Literal["tensorrt_rtx"] = Field(description="TensorRT-RTX.")
    compute_capabilities: tuple[ComputeCapability, ...] = Field(
        ("8.6", "8.9", "12.0"), min_length=1, description="Supported GPU generations."
    )
    flags: dict[RtxFlag, bool] = Field({}, description="Builder flags to set or clear.")
    profiling_verbosity: Literal["layer_names_only", "none", "detailed"] = Field(
        "layer_names_only", description="Details about layers in the engine."
    )
    runtime_cache: bool = Field(False, description="Keep kernels compiled while loading for later.")


Engine = Annotated[
    OnnxRuntimeEngine | TensorRtEngine | TensorRtRtxEngine, OneOf(BACKENDS, field="backend")
]
