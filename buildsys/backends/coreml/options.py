"""The fields of a Core ML engine, and checks across them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from buildsys.backends.coreml.description import (
    DTYPES,
    MOST_DIMENSIONS,
    Target,
    specification_version,
)
from buildsys.manifest.problem import Problems
from buildsys.manifest.schema.engines import EngineBase
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView


class CoreMlEngine(EngineBase):
    """A Core ML package (.mlpackage), built from the captured PyTorch program."""

    backend: Literal["coreml"] = Field(description="Core ML.")
    compute_units: Literal["all", "cpu_and_gpu", "cpu_and_neural_engine", "cpu_only"] = Field(
        "all", description="Processors that a run may use."
    )
    minimum_deployment_target: Target = Field(
        "iOS16",
        description="Oldest system that the package runs on; newer ones have more operators.",
    )
    shapes: Literal["range", "enumerated"] = Field(
        "range",
        description="All sizes of dims, or min, opt and max only: faster on the Neural Engine.",
    )


ENGINE = CoreMlEngine
_SEVERAL_ENUMERATED, _FLOAT16 = "iOS18", "iOS16"  # first targets


def problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield fields beyond Core ML, and contradictory ones."""
    precision = engine.get("precision", "fp32")
    if precision in ("bf16", "int8", "fp8"):
        text = f"Core ML engines are not built in {precision}"
        yield view.problem((*path, "precision"), text, "use fp32 or fp16")
    units = engine.get("compute_units")
    if units == "cpu_and_neural_engine" and precision == "fp32":
        text = "the Neural Engine computes in fp16 only"
        hint = "set precision: fp16, or compute_units: cpu_only"
        yield view.problem((*path, "compute_units"), text, hint)
    target = engine.get("minimum_deployment_target", "iOS16")
    version = specification_version(target) if isinstance(target, str) else None
    flexible = []
    for (*_, name), tensor in view.maps("inputs", ...):
        shape, dtype = view.list("inputs", str(name), "shape"), tensor.get("dtype", "float32")
        flexible += [name] if any(isinstance(size, str) for size in shape) else []
        where = ("inputs", str(name))
        if shape and len(shape) > MOST_DIMENSIONS:
            text = f"Core ML takes inputs of up to {MOST_DIMENSIONS} dimensions, not {len(shape)}"
            yield view.problem((*where, "shape"), text, "reshape it in forward")
        elif tensor.get("shape") == []:
            text = "Core ML takes no inputs without dimensions"
            yield view.problem((*where, "shape"), text, "give it the shape [1]")
        if isinstance(dtype, str) and dtype not in DTYPES:
            text = f"Core ML has no inputs of the type {dtype}"
            yield view.problem((*where, "dtype"), text, f"use one of {', '.join(DTYPES)}")
        elif dtype == "float16" and version and version < (specification_version(_FLOAT16) or 0):
            text = f"inputs of float16 need {_FLOAT16} (macOS13)"
            hint = f"set minimum_deployment_target: {_FLOAT16}"
            yield view.problem((*path, "minimum_deployment_target"), text, hint)
    for dim in view.map("dims"):
        if (span := view.dim_range(dim)) and span[0] == 0:
            text = "Core ML has no empty tensors"
            yield view.problem(("dims", dim, "min"), text, "let it begin at 1")
    if engine.get("shapes") == "enumerated":
        yield from _enumerated_problems(view, path, flexible, version)


def _enumerated_problems(
    view: ManifestView, path: FieldPath, flexible: list[Any], version: int | None
) -> Problems:
    if not flexible and view.get("inputs"):
        text = "has no effect, as all inputs have fixed shapes"
        yield view.problem((*path, "shapes"), text, "remove it", of_key=True)
    least = specification_version(_SEVERAL_ENUMERATED) or 0
    if len(flexible) > 1 and version and version < least:
        text = f"{len(flexible)} inputs of enumerated shapes need {_SEVERAL_ENUMERATED} (macOS15)"
        hint = f"set minimum_deployment_target: {_SEVERAL_ENUMERATED}, or shapes: range"
        yield view.problem((*path, "shapes"), text, hint)
