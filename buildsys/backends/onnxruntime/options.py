"""The fields of an ONNX Runtime engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from buildsys.manifest.schema.engine_base import EngineBase


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


ENGINE = OnnxRuntimeEngine
