"""Engines: one section per backend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from buildsys.manifest.spec import Bytes, Name, Precision, Spec
from buildsys.manifest.stage_spec import EngineTolerance


class _Engine(Spec):
    name: Name = Field(description="Name of the engine in targets and paths.")
    precision: Precision = "fp32"
    required: bool = Field(False, description="Fail the build where this engine cannot be built.")
    tolerance: EngineTolerance | None = Field(None, description="Limits instead of those of `verify`.")
    toolchain: Name | None = Field(None, description="A toolchain of project.yaml that builds and runs it.")


class OnnxRuntimeEngine(_Engine):
    """An ONNX Runtime session; the optimized model that the session saves is the engine."""

    backend: Literal["onnxruntime"]
    provider: Literal["cpu", "cuda"] = "cpu"
    intra_op_threads: int = Field(0, ge=0, description="0: one per core.")
    inter_op_threads: int = Field(1, ge=1)
    graph_optimization_level: Literal["disable", "basic", "extended", "all"] = "all"
    execution_mode: Literal["sequential", "parallel"] = "sequential"
    spinning: bool = Field(True, description="Threads wait by spinning: lower latency, a busy core.")
    session_config: dict[str, str] = Field(default_factory=dict, description="Session config entries by their key.")


class ShapeRange(Spec):
    """The shapes that one input takes in one optimization profile."""

    min: tuple[Annotated[int, Field(ge=0)], ...]
    opt: tuple[Annotated[int, Field(ge=0)], ...]
    max: tuple[Annotated[int, Field(ge=0)], ...]


RtxFlag = Literal[
    "tf32", "sparse_weights", "direct_io", "gpu_fallback", "refit", "refit_individual", "strip_plan",
    "weight_streaming", "strict_nans", "editable_timing_cache", "disable_compilation_cache", "monitor_memory",
    "distributive_independence", "require_user_allocation", "version_compatible", "exclude_lean_runtime",
    "refit_identical", "debug",
]  # fmt: skip
ComputeCapability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1", "current"]


class TensorRtRtxEngine(_Engine):
    """A TensorRT-RTX engine: strongly typed, so its precision is that of the ONNX it is built from."""

    backend: Literal["tensorrt_rtx"]
    profiles: tuple[dict[str, ShapeRange], ...] | None = Field(
        None, description="Optimization profiles by input name; default: one from `dims`."
    )
    compute_capabilities: tuple[ComputeCapability, ...] = Field(
        ("8.6", "8.9", "12.0"), min_length=1, description="GPU generations that the engine runs on."
    )
    flags: dict[RtxFlag, bool] = Field(default_factory=dict, description="Builder flags to set or clear.")
    builder_optimization_level: int = Field(3, ge=0, le=5)
    workspace: Bytes | None = Field(None, description="Limit of the workspace memory pool, e.g. 4GiB.")
    tactic_shared_memory: Bytes | None = None
    tiling_optimization_level: Literal["none", "fast", "moderate", "full"] = "none"
    l2_limit_for_tiling: Bytes | None = None
    max_aux_streams: int | None = Field(None, ge=0)
    avg_timing_iterations: int = Field(1, ge=1)
    max_threads: int | None = Field(None, ge=1, description="Threads of the builder.")
    profiling_verbosity: Literal["layer_names_only", "none", "detailed"] = "layer_names_only"


BACKENDS = ("onnxruntime", "tensorrt_rtx")


def _backend(value: object) -> str | None:
    backend = value.get("backend") if isinstance(value, dict) else getattr(value, "backend", None)
    return f"<{backend}>" if backend in BACKENDS else None


Engine = Annotated[
    Annotated[OnnxRuntimeEngine, Tag("<onnxruntime>")] | Annotated[TensorRtRtxEngine, Tag("<tensorrt_rtx>")],
    Discriminator(_backend, custom_error_type="backend", custom_error_message="no known backend"),
]
