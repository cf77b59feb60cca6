"""Engines in a manifest: a union of the options of all backends."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

from buildsys.manifest.schema.base import OneOf
from buildsys.manifest.schema.engine_base import EngineBase
from buildsys.manifest.schema.engine_spec import engine_spec
from buildsys.system.backend_registry import backend_names

if TYPE_CHECKING:
    Engine = EngineBase
else:
    _SPECS = {name: engine_spec(name) for name in backend_names()}
    Engine = Annotated[reduce(or_, _SPECS.values()), OneOf(tuple(_SPECS), field="backend")]
