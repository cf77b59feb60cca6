"""Engines in a manifest: a union of the options of all backends."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from buildsys.errors import Unavailable
from buildsys.manifest.schema.base import OneOf
from buildsys.manifest.schema.engine_base import EngineBase
from buildsys.system.backend_registry import (
    BrokenBackendError,
    backend_names,
    describe_backend,
    import_backend,
)


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


if TYPE_CHECKING:
    Engine = EngineBase
else:
    _SPECS = {name: engine_spec(name) for name in backend_names()}
    Engine = Annotated[reduce(or_, _SPECS.values()), OneOf(tuple(_SPECS), field="backend")]
