"""The fields of a PyTorch engine, and checks across them."""

from typing import Any, Literal

from pydantic import Field

from buildsys.manifest.problem import Problems
from buildsys.manifest.schema.engines import EngineBase
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView


class TorchEngine(EngineBase):
    """The captured PyTorch program, compiled by AOTInductor for this kind of processor."""

    backend: Literal["torch"] = Field(description="PyTorch.")
    threads: int = Field(0, ge=0, description="0: PyTorch's default.")
    refit: bool = Field(True, description="Put new weights into an earlier package of the graph.")
    precision_share: float = Field(
        0.1, ge=0, le=1, description="Fail if fewer operators have the precision; 0: never."
    )


ENGINE = TorchEngine


def problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield unsupported precisions."""
    precision = engine.get("precision", "fp32")
    if precision not in ("fp32", "fp16", "bf16"):
        text = f"PyTorch engines are not built in {precision}"
        yield view.problem((*path, "precision"), text, "use fp32, fp16 or bf16")
