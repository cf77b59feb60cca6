"""Fields of all engines, and engines of ONNX Runtime."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from buildsys.manifest.schema.base import Name, Precision, Spec
from buildsys.manifest.schema.stages import EngineTolerance


class EngineBase(Spec):
    """The fields of every engine."""

    name: Name = Field(description="Name of the engine in targets and paths.")
    precision: Precision = "fp32"
    required: bool = Field(False, description="Fail the build if this engine cannot be built.")
    tolerance: EngineTolerance | None = Field(
        None, description="Limits of this engine, overriding those of `verify`."
    )
    toolchain: Name | None = Field(None, description="Toolchain of project.yaml to build and run.")


class OnnxRuntimeEngine(EngineBase):
    """An ONNX Runtime session, saved as an optimized model."""

    backend: Literal["onnxruntime"]
    provider: Literal["cpu", "cuda"] = "cpu"
    intra_op_threads: int = Field(0, ge=0, description="0: one per core.")
    inter_op_threads: int = Field(1, ge=1)
    graph_optimization_level: Literal["disable", "basic", "extended", "all"] = "all"
    execution_mode: Literal["sequential", "parallel"] = "sequential"
    spinning: bool = Field(True, description="Let threads spin: lower latency, a busy core.")
    session_config: dict[str, str] = Field({}, description="Session config entries by key.")
