"""Fields are validated one by one, with the result of the whole schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from buildsys.manifest.model_fields import ModelFields
from buildsys.manifest.project import load_project
from buildsys.manifest.schema.model import ModelSpec

NET: dict[str, Any] = {
    "model": "net",
    "source": {"torchvision": "resnet18", "kwargs": {"a": [1, 2.0, True, None]}},
    "inputs": {"x": {"shape": ["n", 3], "dtype": "int64", "data": {"random": "integers"}}},
    "dims": {"n": {"min": 1, "opt": 2, "max": 8}},
    "engines": [{"backend": "onnxruntime", "name": "ort", "tolerance": {"rtol": 0.5}}],
}


def test_the_schema_has_no_rule_on_several_fields() -> None:
    """A field alone would not see it."""
    rules = ModelSpec.__pydantic_decorators__
    assert [*rules.model_validators] == ["_lists_to_tuples"]
    assert not rules.field_validators
    assert not rules.root_validators


def test_equal_fields_are_validated_once_and_others_apart() -> None:
    fields = ModelFields()
    first = fields.resolve(NET)
    second = fields.resolve({**NET, "model": "other", "engines": []})
    assert second["inputs"] is first["inputs"]
    assert second["bench"] is first["bench"]
    assert (first["model"], second["model"]) == ("net", "other")
    assert first["inputs"]["x"]["data"]["high"] == 10
    limits = first["engines"][0]["tolerance"]
    assert {name: limit for name, limit in limits.items() if limit is not None} == {"rtol": 0.5}
    assert second["engines"] == []
    dims = {"n": {"min": 1, "opt": 2, "max": True}}  # True equals 1, and is no integer here
    with pytest.raises(ValidationError, match="max"):
        fields.resolve({**NET, "dims": dims})
    kwargs = {"a": [True, 2, True, None]}
    other = fields.resolve({**NET, "source": {**NET["source"], "kwargs": kwargs}})
    assert repr(other["source"]["kwargs"]) == repr(kwargs)


def test_the_text_is_the_json_of_the_fields() -> None:
    fields = ModelFields()
    for changes in ({}, {"engines": []}, {"validate": {"rtol": 1}}, {"verify": {"fp32": {}}}):
        data = fields.resolve({**NET, **changes})
        data["toolchains"] = {"t": {"python": 'a"b'}}
        assert fields.to_json(data) == json.dumps(data, separators=(",", ":"))


def test_the_result_is_that_of_the_whole_schema() -> None:
    """All shipped models, and one after another in one load."""
    models = load_project(Path(__file__).parents[3], remember=False).models.values()
    for model in models:
        data = {name: value for name, value in model.data.items() if name != "toolchains"}
        given = _without_none(data)
        whole = ModelSpec.model_validate(given).model_dump(mode="json", by_alias=True)
        assert [*whole] == [*data]
        for name in whole.keys() - {"validate", "verify", "inputs", "engines"}:
            assert whole[name] == data[name], (model.name, name)


def test_defaults_are_those_of_the_whole_schema() -> None:
    given = {"model": "net"}
    whole = ModelSpec.model_validate(given).model_dump(mode="json", by_alias=True)
    found = ModelFields().resolve(given)
    for limits in (whole["validate"], *whole["verify"].values()):
        if isinstance(limits, dict):  # open, as they depend on the network's types
            limits.update(rtol=None, cosine=None)
    assert found == whole


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "changes",
    [{"inputs": {}}, {"model": 3}, {"nothing": 1}, {"engines": [{}]}, {"dims": {"n": {"min": 1}}}],
)
def test_errors_are_those_of_the_whole_schema(changes: dict[str, Any]) -> None:
    fields = ModelFields()
    fields.resolve(NET)
    given = {**NET, **changes}
    with pytest.raises(ValidationError) as whole:
        ModelSpec.model_validate(given)
    with pytest.raises(ValidationError) as found:
        fields.resolve(given)
    assert found.value.errors() == whole.value.errors()
