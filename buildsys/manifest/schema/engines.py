"""Engines in a manifest, with the options of their backend.

A manifest has few backends. Importing the options of all of them takes longer than its check, so
those of a backend are imported at its first engine.
"""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import core_schema

from buildsys.manifest.schema.base import OneOf, fields_of
from buildsys.manifest.schema.engine_base import EngineBase, engine_spec
from buildsys.system.backend_registry import backend_names, find_package


class AnyBackend:
    """Annotation of an engine of any backend."""

    def load(self) -> Any:
        """Return the union of the engines of all backends."""
        return _union(backend_names())

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Return a schema that loads a backend's options when it validates them."""
        return core_schema.no_info_plain_validator_function(_validated)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON Schema of the engines of all backends."""
        return handler(_adapter(backend_names()).core_schema)


if TYPE_CHECKING:
    Engine = EngineBase
else:
    Engine = Annotated[EngineBase, AnyBackend()]


def _validated(engine: object) -> Any:
    backend = fields_of(engine).get("backend")
    is_known = isinstance(backend, str) and find_package(backend) is not None
    names = (backend,) if is_known else backend_names()  # for an error with all names
    return _adapter(names).validate_python(engine)


@cache
def _adapter(backends: tuple[str, ...]) -> TypeAdapter[Any]:
    return TypeAdapter(_union(backends))


def _union(backends: tuple[str, ...]) -> Any:
    specs = [engine_spec(backend) for backend in backends]
    for spec in specs:
        spec.model_rebuild()  # with the serializer, which a union outside of a model does not build
    return Annotated[reduce(or_, specs), OneOf(backends, field="backend")]
