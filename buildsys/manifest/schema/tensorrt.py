"""Engines of TensorRT 8.6, 10 and 11 and of TensorRT-RTX."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from buildsys.manifest.schema.base import SHA256_PATTERN, Bytes, Callable, DType, Spec, TensorName
from buildsys.manifest.schema.engine_base import EngineBase

Sizes = tuple[Annotated[int, Field(ge=0)], ...]
Integers = tuple[int, ...]
OtherFlag = Literal[
    "strict_nans", "editable_timing_cache", "disable_compilation_cache", "monitor_memory",
    "distributive_independence", "debug",
]  # fmt: skip
RtxFlag = Literal[
    "tf32", "sparse_weights", "direct_io", "gpu_fallback", "refit", "refit_individual", "strip_plan",
    "weight_streaming", "strict_nans", "editable_timing_cache", "disable_compilation_cache", "monitor_memory",
    "distributive_independence", "require_user_allocation", "version_compatible", "exclude_lean_runtime",
    "refit_identical", "debug",
]  # fmt: skip
ComputeCapability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1", "current"]
TacticSource = Literal["cublas", "cublas_lt", "cudnn", "edge_mask_convolutions", "jit_convolutions"]
TensorFormat = Literal[
    "linear", "chw2", "chw4", "chw16", "chw32", "hwc", "hwc8", "hwc16", "dhwc", "dhwc8", "cdhw32", "dla_linear",
    "dla_hwc4",
]  # fmt: skip


class ShapeRange(Spec):
    """The shapes that one input takes in one optimization profile."""

    min: Sizes
    opt: Sizes
    max: Sizes


class ValueRange(Spec):
    """The values that one input takes in one optimization profile, one for each of its elements."""

    min: Integers
    opt: Integers
    max: Integers


class ShapeValues(Spec):
    """An input whose values decide shapes inside the network."""

    values: ValueRange


def _range_kind(value: object) -> str:
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return "<values>" if "values" in fields else "<shape>"


ProfileRange = Annotated[
    Annotated[ShapeRange, Tag("<shape>")] | Annotated[ShapeValues, Tag("<values>")],
    Discriminator(_range_kind),
]


class TensorIo(Spec):
    """How one input or output lies in device memory."""

    format: TensorFormat | None = Field(
        None, description="Memory layout. Not set: linear, rows first."
    )
    dtype: DType | None = Field(
        None, description="Type of the engine's tensor. Not set: that of the graph."
    )


class LayerPrecision(Spec):
    """The precision of the layers whose name fits a pattern."""

    layers: str = Field(
        min_length=1, description="Pattern of layer names, with * and ?, such as /layer4/*."
    )
    precision: Literal["fp32", "fp16", "bf16", "int8"]


class TimingCacheSpec(Spec):
    """Which timings an engine is built with."""

    pin: Annotated[str, Field(pattern=SHA256_PATTERN)] = Field(
        description="Digest of the one timing cache to build with, as an engine.json has it."
    )


class TensorRtBase(EngineBase):
    """What all TensorRT builders have."""

    profiles: tuple[dict[str, ProfileRange], ...] | None = Field(
        None, description="Optimization profiles by input name; default: one from `dims`."
    )
    builder_optimization_level: int = Field(3, ge=0, le=5)
    workspace: Bytes | None = Field(
        None, description="Limit of the workspace memory pool, e.g. 4GiB."
    )
    tactic_shared_memory: Bytes | None = Field(
        None, description="Limit of a tactic's shared memory; not on 8.6."
    )
    tiling_optimization_level: Literal["none", "fast", "moderate", "full"] = Field(
        "none", description="How far tilings are searched; not on 8.6."
    )
    l2_limit_for_tiling: Bytes | None = Field(
        None, description="L2 cache that tilings may use; not on 8.6."
    )
    max_aux_streams: int | None = Field(None, ge=0)
    avg_timing_iterations: int = Field(1, ge=1)
    max_threads: int | None = Field(None, ge=1, description="Threads of the builder.")
    io: dict[TensorName, TensorIo] = Field(
        default_factory=dict, description="Format and type of inputs and outputs in device memory."
    )
    network: Callable | None = Field(
        None,
        description="FILE.py:NAME, called with the network and the builder's configuration before the build.",
    )
    precision_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Fail where a smaller share of the layers has the engine's precision.",
    )


class TensorRtEngine(TensorRtBase):
    """An engine of TensorRT 8.6, 10 or 11 for the GPU that builds it."""

    backend: Literal["tensorrt"]
    typing: Literal["auto", "weak", "strong"] = Field(
        "auto",
        description="Who chooses the type of each layer: the builder, or the types of the graph.",
    )
    quantization: Literal["auto", "implicit", "explicit"] = Field(
        "auto",
        description="Who quantizes: the builder, with a calibrator, or the quantizers of the graph.",
    )
    tf32: bool = Field(
        True, description="fp32 layers may multiply in TF32, with 10 bits of mantissa."
    )
    profiling_verbosity: Literal["layer_names_only", "none", "detailed"] = Field(
        "detailed",
        description="With less, the precision of the finished engine cannot be looked at.",
    )
    tactic_dram: Bytes | None = Field(
        None, description="Limit of device memory that a tactic may use."
    )
    tactic_sources: tuple[TacticSource, ...] | None = Field(
        None, description="Libraries that tactics may come from; not set: TensorRT's default."
    )
    sparsity: bool = Field(
        False, description="Use sparse kernels where the weights are 2:4 sparse."
    )
    refit: bool = Field(False, description="The weights can be replaced later.")
    refit_identical: bool = Field(False, description="Only by the same values; not on 8.6.")
    refit_individual: bool = Field(
        False, description="Only those that the network hook marks; not on 8.6."
    )
    strip_plan: bool = Field(False, description="Leave the weights out of the engine; not on 8.6.")
    version_compatible: bool = Field(
        False, description="The engine runs on later versions as well."
    )
    exclude_lean_runtime: bool = Field(
        False, description="Leave the lean runtime out of a version compatible engine."
    )
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = Field(
        "none",
        description="Other GPUs that the engine runs on; same_compute_capability: not on 8.6.",
    )
    weight_streaming: bool = Field(
        False, description="Weights may stay in host memory; strong typing, not on 8.6."
    )
    dla_core: int | None = Field(
        None, ge=0, description="Build for this deep learning accelerator."
    )
    gpu_fallback: bool = Field(
        False, description="Layers that the accelerator lacks run on the GPU."
    )
    dla_managed_sram: Bytes | None = None
    dla_local_dram: Bytes | None = None
    dla_global_dram: Bytes | None = None
    direct_io: bool = Field(
        False, description="Refuse formats of `io` that the engine would have to copy from or to."
    )
    layer_precisions: tuple[LayerPrecision, ...] = Field(
        (), description="Precision of single layers, later entries win; weak typing only."
    )
    precision_constraints: Literal["obey", "prefer"] = Field(
        "obey", description="Whether a layer whose precision has no kernel is an error."
    )
    flags: dict[OtherFlag, bool] = Field(
        default_factory=dict, description="Further builder flags; not on 8.6."
    )
    timing_cache: TimingCacheSpec | None = Field(
        None,
        description="Build with exactly these timings; not set: with those that builds here share.",
    )


class TensorRtRtxEngine(TensorRtBase):
    """A TensorRT-RTX engine: strongly typed, so its precision is that of the ONNX it is built from."""

    backend: Literal["tensorrt_rtx"]
    compute_capabilities: tuple[ComputeCapability, ...] = Field(
        ("8.6", "8.9", "12.0"), min_length=1, description="GPU generations that the engine runs on."
    )
    flags: dict[RtxFlag, bool] = Field(
        default_factory=dict, description="Builder flags to set or clear."
    )
    profiling_verbosity: Literal["layer_names_only", "none", "detailed"] = "layer_names_only"
    runtime_cache: bool = Field(
        False,
        description="Keep the kernels that are compiled when the engine is loaded for the next time.",
    )
