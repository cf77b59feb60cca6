"""The fields of an ExecuTorch engine, and checks across them."""

from typing import Any, Literal

from pydantic import Field

from buildsys.manifest.problem import Problems
from buildsys.manifest.schema.engines import EngineBase
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView


class ExecuTorchEngine(EngineBase):
    """A program of ExecuTorch (.pte), built from the captured PyTorch program."""

    backend: Literal["executorch"] = Field(description="ExecuTorch.")
    delegate: Literal["xnnpack", "none"] = Field(
        "xnnpack", description="Library that runs the operators; none: portable kernels."
    )
    delegated_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Fail if the delegate runs a smaller share of the operators; 0: never.",
    )
    threads: int = Field(0, ge=0, description="0: one per core.")
    per_channel: bool = Field(True, description="Of int8: a scale per channel of the weights.")


ENGINE = ExecuTorchEngine


def problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield unsupported precisions, and fields that contradict each other."""
    precision = engine.get("precision", "fp32")
    if precision in ("fp16", "bf16", "fp8"):
        text = f"ExecuTorch engines are not built in {precision}"
        yield view.problem((*path, "precision"), text, "use fp32 or int8")
    if engine.get("delegate") == "none" and precision == "int8":
        text = "int8 engines of ExecuTorch need XNNPACK"
        yield view.problem((*path, "delegate"), text, "use delegate: xnnpack, or fp32")
