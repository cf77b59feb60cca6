"""Engines: one section per backend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from buildsys.manifest.schema.engine_base import EngineBase
from buildsys.manifest.schema.tensorrt import TensorRtEngine, TensorRtRtxEngine


class OnnxRuntimeEngine(EngineBase):
    """An ONNX Runtime session; the optimized model that the session saves is the engine."""

    backend: Literal["onnxruntime"]
    provider: Literal["cpu", "cuda"] = "cpu"
    intra_op_threads: int = Field(0, ge=0, description="0: one per core.")
    inter_op_threads: int = Field(1, ge=1)
    graph_optimization_level: Literal["disable", "basic", "extended", "all"] = "all"
    execution_mode: Literal["sequential", "parallel"] = "sequential"
    spinning: bool = Field(
        True, description="Threads wait by spinning: lower latency, a busy core."
    )
    session_config: dict[str, str] = Field(
        default_factory=dict, description="Session config entries by their key."
    )


BACKENDS = ("onnxruntime", "tensorrt", "tensorrt_rtx")


def _backend(value: object) -> str | None:
    backend = value.get("backend") if isinstance(value, dict) else getattr(value, "backend", None)
    return f"<{backend}>" if backend in BACKENDS else None


Engine = Annotated[
    Annotated[OnnxRuntimeEngine, Tag("<onnxruntime>")]
    | Annotated[TensorRtEngine, Tag("<tensorrt>")]
    | Annotated[TensorRtRtxEngine, Tag("<tensorrt_rtx>")],
    Discriminator(_backend, custom_error_type="backend", custom_error_message="no known backend"),
]
