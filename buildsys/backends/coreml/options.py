"""The fields of a Core ML engine, and checks across them."""

from typing import Any, Literal

from pydantic import Field

from buildsys.backends.coreml.description import DTYPES, Target
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


def problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield fields beyond Core ML, and contradictory ones."""
    precision = engine.get("precision", "fp32")
    if precision in ("bf16", "int8", "fp8"):
        text = f"Core ML engines are not built in {precision}"
        yield view.problem((*path, "precision"), text, "use fp32 or fp16")
    for (*_, name), tensor in view.maps("inputs", ...):
        dtype = tensor.get("dtype", "float32")
        if isinstance(dtype, str) and dtype not in DTYPES:
            text = f"Core ML has no inputs of the type {dtype}"
            hint = f"use one of {', '.join(DTYPES)}"
            yield view.problem(("inputs", str(name), "dtype"), text, hint)
