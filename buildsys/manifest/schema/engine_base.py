"""What the engines of all backends have."""

from __future__ import annotations

from pydantic import Field

from buildsys.manifest.schema.base import Name, Precision, Spec
from buildsys.manifest.schema.stages import EngineTolerance


class EngineBase(Spec):
    """The fields of every engine."""

    name: Name = Field(description="Name of the engine in targets and paths.")
    precision: Precision = "fp32"
    required: bool = Field(False, description="Fail the build where this engine cannot be built.")
    tolerance: EngineTolerance | None = Field(
        None, description="Limits instead of those of `verify`."
    )
    toolchain: Name | None = Field(
        None, description="A toolchain of project.yaml that builds and runs it."
    )
