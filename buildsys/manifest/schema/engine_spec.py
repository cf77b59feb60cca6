"""The options of a single backend's engines, as reports need them without the union of all."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, create_model

from buildsys.errors import Unavailable
from buildsys.manifest.schema.engine_base import EngineBase
from buildsys.system.backend_registry import BrokenBackendError, describe_backend, import_backend


class _UnusableEngine(EngineBase):
    """An engine of a broken package: its fields are unknown, and it is never built."""

    model_config = ConfigDict(extra="allow")


def engine_spec(backend: str) -> type[EngineBase]:
    """Return the fields of a backend's engines."""
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
