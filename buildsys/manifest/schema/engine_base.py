"""The fields of every engine, base of the options of each backend."""

from __future__ import annotations

from pydantic import Field

from buildsys.manifest.schema.base import EnginePrecision, Name, NeedsSpec, Spec
from buildsys.manifest.schema.gates import GatesSpec
from buildsys.manifest.schema.stages import EngineTolerance


class EngineBase(Spec):
    """The fields of every engine."""

    name: Name = Field(description="Name of the engine in targets and paths.")
    precision: EnginePrecision = Field(
        "fp32",
        description="Of graph or layers; auto keeps the nodes in fp32 that exceed the limits.",
    )
    required: bool = Field(False, description="Fail the build if this engine cannot be built.")
    tolerance: EngineTolerance | None = Field(
        None, description="Limits of this engine, overriding those of `verify`."
    )
    toolchain: Name | None = Field(None, description="Toolchain of project.yaml to build and run.")
    needs: NeedsSpec | None = Field(
        None, description="Needs of this engine, instead of those of the model."
    )
    gates: GatesSpec | None = Field(
        None, description="Gates of this engine, instead of those of the model."
    )
