"""What the bench stage uses of a manifest: how one engine is timed, and beside what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from buildsys.plan import stage_inputs
from buildsys.plan.action import FileRef
from buildsys.plan.artifacts import Graph, Resolved, converted_graph, golden_refs, simplified_graph
from buildsys.plan.surgery_points import (
    AFTER_SIMPLIFY,
    EXPORTED,
    frees_dims,
    golden_point,
    is_cut,
    origin_of,
)

ONNXRUNTIME = "onnxruntime"
_TORCH = ("torch", "torch_cuda_graph", "torch_compile")
_ON_GPU_ONLY = ("torch_cuda_graph",)
_PACE = ("duration", "warmup", "min_samples")
_PRECISIONS = ("fp32", "fp16", "bf16")
_LEAST_PRECISION = "fp16"
_GPU = ("cuda_graph", "transfers", "in_flight", "wait")


def bench_options(spec: Resolved, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``bench`` that this engine's benchmark uses."""
    bench, precision = spec["bench"], baseline_precision(spec, engine)
    options = {field: bench[field] for field in _PACE}
    options["baselines"] = baselines_of(spec, engine)
    if options["baselines"] and (
        precision != stage_inputs.FULL_PRECISION or stage_inputs.is_on_gpu(engine)
    ):
        options["precision"] = precision
    if times_itself(engine):
        options["gpu"] = {field: bench[field] for field in _GPU}
    return options


def baselines_of(spec: Resolved, engine: Mapping[str, Any]) -> list[str]:
    """Return the baselines that an engine is timed beside: not all run everywhere, or do the same work."""
    asked = [
        name
        for name in spec["bench"]["baselines"]
        if stage_inputs.is_on_gpu(engine) or name not in _ON_GPU_ONLY
    ]
    return [name for name in asked if name not in _TORCH or _is_whole_network(spec)]


def has_torch(spec: Resolved, engine: Mapping[str, Any]) -> bool:
    """Tell whether PyTorch is among an engine's baselines."""
    return any(name in _TORCH for name in baselines_of(spec, engine))


def baseline_tools(spec: Resolved, engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the libraries that run an engine's baselines."""
    names = baselines_of(spec, engine)
    torch = stage_inputs.network_tools(spec) if has_torch(spec, engine) else ()
    triton = ("triton",) if "torch_compile" in names else ()
    return (*torch, *triton, *((ONNXRUNTIME,) if ONNXRUNTIME in names else ()))


def baseline_environment(spec: Resolved, engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the families of environment variables that an engine's baselines depend on."""
    torch = ("torch",) if has_torch(spec, engine) else ()
    return (*torch, *(("onnxruntime",) if ONNXRUNTIME in baselines_of(spec, engine) else ()))


def baseline_graph(spec: Resolved, engine: Mapping[str, Any]) -> Graph | None:
    """Return the graph that ONNX Runtime is timed with, None where it is no baseline."""
    if ONNXRUNTIME not in baselines_of(spec, engine):
        return None
    precision = baseline_precision(spec, engine)
    return (
        simplified_graph(spec)
        if precision == stage_inputs.FULL_PRECISION
        else converted_graph(spec, precision)
    )


def baseline_precision(spec: Resolved, engine: Mapping[str, Any]) -> str:
    """Return the precision of an engine's baselines: its own, or the least that they have; fp32 on a CPU."""
    asked: str = spec["bench"]["baseline_precision"]
    if asked != "auto":
        return asked
    if not stage_inputs.is_on_gpu(engine):
        return stage_inputs.FULL_PRECISION
    own: str = engine["precision"]
    return own if own in _PRECISIONS else _LEAST_PRECISION


def converted_precisions(spec: Resolved) -> tuple[str, ...]:
    """Return the precisions of graphs that only ONNX Runtime as a baseline reads."""
    needed = (
        baseline_precision(spec, engine)
        for engine in spec["engines"]
        if baseline_graph(spec, engine)
    )
    return tuple(
        dict.fromkeys(precision for precision in needed if precision != stage_inputs.FULL_PRECISION)
    )


def network_inputs(spec: Resolved, cases: Iterable[str]) -> dict[str, FileRef]:
    """Return the golden inputs of the network itself by role, where the engine takes others."""
    if golden_point(spec, AFTER_SIMPLIFY) == EXPORTED:
        return {}
    origins = {case: origin_of(spec, case, EXPORTED) for case in cases}
    files = golden_refs(spec, origins.values(), EXPORTED)
    return {f"network.case.{case}": files[f"case.{origin}"] for case, origin in origins.items()}


def times_itself(engine: Mapping[str, Any]) -> bool:
    """Tell whether an engine's backend times it by the GPU's clock."""
    return bool(stage_inputs.is_on_gpu(engine) and engine["backend"] != ONNXRUNTIME)


def _is_whole_network(spec: Resolved) -> bool:
    """Tell whether PyTorch can be timed at the same work: not at a graph that was cut, nor with freed sizes."""
    return "onnx" not in spec["source"] and not is_cut(spec) and not frees_dims(spec)
