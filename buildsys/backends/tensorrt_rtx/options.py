"""The fields of a TensorRT-RTX engine."""

from typing import Literal

from pydantic import Field

from buildsys.backends.tensorrt.options import TensorRtBase, common_problems

RtxFlag = Literal[
    "tf32", "sparse_weights", "direct_io", "gpu_fallback", "refit", "refit_individual",
    "strip_plan", "weight_streaming", "strict_nans", "editable_timing_cache",
    "disable_compilation_cache", "monitor_memory", "distributive_independence",
    "require_user_allocation", "version_compatible", "exclude_lean_runtime", "refit_identical",
    "debug",
]  # fmt: skip
ComputeCapability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1", "current"]


class TensorRtRtxEngine(TensorRtBase):
    """A TensorRT-RTX engine: strongly typed, with the precision of its ONNX graph."""

    backend: Literal["tensorrt_rtx"] = Field(description="TensorRT-RTX.")
    compute_capabilities: tuple[ComputeCapability, ...] = Field(
        ("8.6", "8.9", "12.0"),
        min_length=1,
        description="GPU generations that the engine runs on; current: the one here.",
    )
    flags: dict[RtxFlag, bool] = Field({}, description="Builder flags to set or clear.")
    profiling_verbosity: Literal["layer_names_only", "none", "detailed"] = Field(
        "layer_names_only", description="Details about layers in the engine."
    )
    runtime_cache: bool = Field(
        False, description="Keep kernels compiled while loading, below $XDG_CACHE_HOME/buildsys."
    )


ENGINE = TensorRtRtxEngine
problems = common_problems
