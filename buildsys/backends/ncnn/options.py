"""The fields of an ncnn engine, and checks across them."""

from typing import Any, Literal

from pydantic import Field

from buildsys.manifest.problem import Problems
from buildsys.manifest.schema.engines import EngineBase
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView


class NcnnEngine(EngineBase):
    """A network of ncnn (.param and .bin)."""

    backend: Literal["ncnn"] = Field(description="ncnn, on the CPU.")
    threads: int = Field(0, ge=0, description="0: one per core.")


ENGINE = NcnnEngine


def problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield unsupported precisions."""
    precision = engine.get("precision", "fp32")
    if precision in ("int8", "fp8"):
        text = f"ncnn engines are not built in {precision}"
        yield view.problem((*path, "precision"), text, "use fp32, fp16 or bf16")
