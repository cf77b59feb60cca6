"""The fields of every engine, base of the options of each backend."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, create_model

from buildsys.errors import Unavailable
from buildsys.manifest.schema.base import EnginePrecision, EngineTolerance, Name, NeedsSpec, Spec
from buildsys.manifest.schema.gates import GatesSpec
from buildsys.system.backend_registry import BrokenBackendError, describe_backend, import_backend


class EngineBase(Spec):
    """The fields of every engine."""

    name: Name = Field(description="Name of the engine in targets and paths.")
    precision: EnginePrecision = "fp32"
    """Of graph or layers; auto keeps the nodes in fp32 that exceed the limits."""
    required: bool = Field(False, description="Fail the build if this engine cannot be built.")
    tolerance: EngineTolerance | None = None
    """Limits of this engine, overriding those of `verify`."""
    toolchain: Name | None = Field(None, description="Toolchain of project.yaml to build and run.")
    needs: NeedsSpec | None = None
    """Needs of this engine, instead of those of the model."""
    gates: GatesSpec | None = None
    """Gates of this engine, instead of those of the model."""


class _UnusableEngine(EngineBase):
    """An engine of a broken package: its fields are unknown, and it is never built."""

    model_config = ConfigDict(extra="allow")


def engine_spec(backend: str) -> type[EngineBase]:
    """Import the fields of a backend's engines."""
    problem = describe_backend(backend).problem
    try:
        if problem:
            raise BrokenBackendError(problem)
        spec = getattr(import_backend(backend, "options"), "ENGINE", None)
        if isinstance(spec, type) and issubclass(spec, EngineBase):
            return spec
        problem = f"the backend {backend} has no ENGINE with the fields of EngineBase"
    except BrokenBackendError as error:
        problem = str(Unavailable(error.problem, error.hint))
    fields: dict[str, Any] = {
        "backend": (Literal[backend], Field(description="A broken package.")),
        "unusable": (str, problem),
    }
    return create_model(f"{backend}_unusable", __base__=_UnusableEngine, **fields)
