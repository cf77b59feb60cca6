"""The fields of models with defaults that depend on other fields."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from buildsys.manifest.model_fields import model_fields
from buildsys.manifest.schema.model import ModelSpec

NET: dict[str, Any] = {
    "model": "net",
    "source": {"torchvision": "resnet18", "kwargs": {"a": [1, 2.0, True, None]}},
    "inputs": {"x": {"shape": ["n", 3], "dtype": "int64", "data": {"random": "integers"}}},
    "dims": {"n": {"min": 1, "opt": 2, "max": 8}},
    "engines": [{"backend": "onnxruntime", "name": "ort", "tolerance": {"rtol": 0.5}}],
}


def test_dependent_defaults_are_filled_in() -> None:
    fields = model_fields(NET)
    assert fields["inputs"]["x"]["data"]["high"] == 10
    limits = fields["engines"][0]["tolerance"]
    assert {name: limit for name, limit in limits.items() if limit is not None} == {"rtol": 0.5}
    assert repr(fields["source"]["kwargs"]) == repr(NET["source"]["kwargs"])


def test_limits_stay_open_unless_they_are_written() -> None:
    fields = model_fields({**NET, "validate": {"rtol": 0.25}, "verify": {"fp16": {"cosine": 0.5}}})
    whole = ModelSpec.model_validate(NET).model_dump(mode="json", by_alias=True)
    assert fields["validate"] == {**whole["validate"], "rtol": 0.25, "cosine": None}
    assert fields["verify"]["fp16"] == {**whole["verify"]["fp16"], "rtol": None, "cosine": 0.5}
    assert fields["verify"]["fp32"] == {**whole["verify"]["fp32"], "rtol": None, "cosine": None}


def test_a_boolean_is_no_integer() -> None:
    with pytest.raises(ValidationError, match="max"):
        model_fields({**NET, "dims": {"n": {"min": 1, "opt": 2, "max": True}}})
