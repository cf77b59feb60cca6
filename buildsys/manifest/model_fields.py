"""The validated fields of a model, with defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.manifest.precisions import base_precision
from buildsys.manifest.schema.model import ModelSpec
from buildsys.manifest.value_ranges import default_high


def model_fields(written: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the fields of a model, and fill in all defaults.

    Raises: ValidationError: all errors of the model.
    """
    fields = ModelSpec.model_validate(written).model_dump(mode="json", by_alias=True)
    for tensor, declared in fields["inputs"].items():
        data = written["inputs"][tensor].get("data") or {}
        if data.get("random") == "integers" and data.get("high") is None:
            declared["data"]["high"] = default_high(declared["dtype"])
    _unset_limits(fields["validate"], written.get("validate") or {})
    for precision, limits in fields["verify"].items():
        if isinstance(limits, dict):
            _unset_limits(limits, (written.get("verify") or {}).get(precision) or {})
    fields["engines"] = [_with_limits(engine, fields["verify"]) for engine in fields["engines"]]
    return fields


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
