"""Fields of manifests about the search for nodes."""

from typing import Literal

from pydantic import Field

from buildsys.manifest.schema.base import Spec, section


class SearchSpec(Spec):
    """Search for the nodes that engines with `precision: auto` keep in fp32."""

    trials: int = Field(100, ge=1, description="Most graphs to convert and run.")
    margin: float = Field(0.2, ge=0, lt=1)
    """Share of the limits left to the engine; raise it if verify or evaluate fails."""
    limit: Literal["error", "metric"] = "error"
    """error: the limits of verify; metric: `drop` of evaluate, on one half of its samples."""


class Sections(Spec):
    """The section of the stage."""

    search: SearchSpec = section()
