"""The validated fields of models, with defaults.

A thousand manifests have few distinct engines, ranges or limits, so each field is validated alone,
and equal values once. No rule of the schema spans several fields of a model.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping
from functools import cache, cached_property, partial
from typing import Any, get_args

from pydantic import ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from buildsys.manifest.precisions import base_precision
from buildsys.manifest.schema.base import Spec
from buildsys.manifest.schema.model import ModelSpec
from buildsys.manifest.value_ranges import default_high

_NAMES = {info.alias or name: name for name, info in ModelSpec.model_fields.items()}
_REQUIRED = {name for name, field in _NAMES.items() if ModelSpec.model_fields[field].is_required()}
_PLAIN = 2  # version of marshal's format without references: equal values have equal bytes


class ModelFields:
    """Validator of models that remembers the values of fields."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], Any] = {}
        self._texts: dict[int, str] = {}  # by the id of a value that is kept here

    def resolve(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return all fields of a model. Parts of them may belong to several models.

        Raises: ValidationError: all errors of the model.
        """
        fields = self._fields(written)
        if fields is None:
            validated = ModelSpec.model_validate(written)
            dumped = validated.model_dump(mode="json", by_alias=True)
            fields = {
                name: _with_dependent_defaults(name, value, written.get(name))
                for name, value in dumped.items()
            }
        if any(engine["tolerance"] for engine in fields["engines"]):
            fields["engines"] = [_with_limits(each, fields["verify"]) for each in fields["engines"]]
        return fields

    def to_json(self, fields: Mapping[str, Any]) -> str:
        """Return the fields of a model as JSON."""
        texts = self._texts
        parts = (
            f'"{name}":{texts.get(id(value)) or _to_json(value)}' for name, value in fields.items()
        )
        return f"{{{','.join(parts)}}}"

    def _fields(self, written: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the fields, None for any error."""
        if not _REQUIRED <= written.keys() <= _NAMES.keys():
            return None
        try:
            found = {name: self._value(name, value) for name, value in written.items()}
        except ValidationError:
            return None
        defaults = self._defaults
        return {name: found[name] if name in found else defaults[name] for name in _NAMES}

    def _value(self, name: str, written: Any) -> Any:
        key = name, marshal.dumps(written, _PLAIN)
        if key not in self._known:
            self._known[key] = self._kept(_validated(name, {name: written}))
        return self._known[key]

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        fields = ModelSpec.model_fields
        found = {name: _default(fields[_NAMES[name]]) for name in _NAMES.keys() - _REQUIRED}
        return {
            name: self._kept(_with_dependent_defaults(name, value, None))
            for name, value in found.items()
        }

    def _kept(self, value: Any) -> Any:
        self._texts[id(value)] = _to_json(value)
        return value


_to_json = partial(json.dumps, separators=(",", ":"))


def _default(info: FieldInfo) -> Any:
    """Return a default. That of a section needs no validator, which takes 1 ms to make."""
    if not info.validate_default:
        return to_jsonable_python(info.get_default(call_default_factory=True), by_alias=True)
    spec: Any = next(iter(get_args(info.annotation)), info.annotation)  # it may be optional
    return {each.alias or name: _default(each) for name, each in spec.model_fields.items()}


def _validated(name: str, written: Mapping[str, Any]) -> Any:
    dumped = _spec_of(name).model_validate(written).model_dump(mode="json", by_alias=True)
    return _with_dependent_defaults(name, dumped[name], written.get(name))


@cache
def _spec_of(name: str) -> type[Spec]:
    """Return a model of one field."""
    field = _NAMES[name]
    info = ModelSpec.model_fields[field]
    fields: dict[str, Any] = {field: (info.annotation, info)}
    return create_model(f"{name.title()}Field", __base__=Spec, **fields)


def _with_dependent_defaults(name: str, value: Any, written: Any) -> Any:
    """Fill in defaults that depend on other values of a field; ``written`` has no defaults."""
    written = written or {}
    if name == "inputs":
        for tensor, fields in value.items():
            data = written[tensor].get("data") or {}
            if data.get("random") == "integers" and data.get("high") is None:
                fields["data"]["high"] = default_high(fields["dtype"])
    elif name == "validate":
        _unset_limits(value, written)
    elif name == "verify":
        for precision, limits in value.items():
            if isinstance(limits, dict):
                _unset_limits(limits, written.get(precision) or {})
    return value


def _unset_limits(limits: dict[str, Any], written: Mapping[str, Any]) -> None:
    """Leave limits open whose defaults depend on the network's types."""
    for name in ("rtol", "cosine"):
        if written.get(name) is None:
            limits[name] = None


def _with_limits(engine: dict[str, Any], verify: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine with the limits of its precision that it does not set."""
    if not engine["tolerance"]:
        return engine
    given = {name: limit for name, limit in engine["tolerance"].items() if limit is not None}
    return {**engine, "tolerance": {**verify[base_precision(engine)], **given}}
