"""Sections of configs/project.yaml: what the models of a project share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from buildsys.manifest.schema.base import VARIABLE_PATTERN, Name, Seconds, Spec


class CacheSpec(Spec):
    """A cache of built outputs that several people and machines share."""

    remote: str = Field(
        min_length=1, description="A folder, or a URL: sftp://host/path, s3://bucket/path."
    )
    mode: Literal["read-only", "read-write"] = Field(
        "read-only", description="Whether results are added to it."
    )
    timeout: Seconds = Field(
        30.0, gt=0, description="What one target may need of it before the run goes on without."
    )


class ToolchainSpec(Spec):
    """Another Python interpreter with its own libraries, for engines that name it."""

    python: str = Field(
        min_length=1, description="Absolute, relative to the project, or the name of a program."
    )
    env: dict[Annotated[str, Field(pattern=VARIABLE_PATTERN)], str] = Field(
        default_factory=dict,
        description="Environment variables on top; {prefix} is the folder of its environment.",
    )


class ProjectSpec(Spec):
    """configs/project.yaml: what all models of the project share."""

    defaults: dict[str, Any] = Field(
        default_factory=dict, description="Manifest sections under every model's own."
    )
    cache: CacheSpec | None = Field(
        None, description="The shared cache, behind the store of this project."
    )
    timing_caches: str | None = Field(
        None,
        min_length=1,
        description="Folder of TensorRT's timing caches, which several clones may share.",
    )
    toolchains: dict[Name, ToolchainSpec] = Field(
        default_factory=dict,
        description="Interpreters beside the one of doit, by the name that engines give.",
    )
