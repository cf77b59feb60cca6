import json
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from buildsys.manifest.yaml_reader import read_yaml
from buildsys.project.json_schema import schema_texts, write_schemas

ROOT = Path(__file__).parents[3]
SCHEMAS = ("engines.schema.json", "model.schema.json", "project.schema.json")


def test_the_committed_schemas_are_current(tmp_path):
    committed = ROOT / "configs/schema"
    assert sorted(schema_texts()) == list(SCHEMAS)
    for name, text in schema_texts().items():
        assert (committed / name).read_text() == text, "run: doit schema"
    assert {path.name for path in committed.iterdir()} == {
        path.name for path in write_schemas(tmp_path)
    }


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    schema, project = (json.loads(schema_texts()[n]) for n in (name, "project.schema.json"))
    definitions = schema["$defs"]
    if schema != project:  # which takes a second, and has the definitions of models as well
        definitions = {n: one for n, one in definitions.items() if one != project["$defs"].get(n)}
    jsonschema.Draft202012Validator.check_schema({**schema, "$defs": definitions})
    return jsonschema.Draft202012Validator(schema)


def test_editors_accept_every_valid_manifest():
    model = _validator("model.schema.json")
    model.validate({"extends": "_base.yaml", "dims": {"batch": {"max": 32}}})
    for file in (ROOT / "configs/models").rglob("*.y*ml"):
        model.validate(read_yaml(file, file.read_bytes()))
    for name in ("project", "engines"):
        file = ROOT / f"configs/{name}.yaml"
        _validator(f"{name}.schema.json").validate(read_yaml(file, file.read_bytes()))


@pytest.mark.parametrize("file", SCHEMAS)
def test_every_field_is_described(file):
    schema = json.loads(schema_texts()[file])
    missing = [
        f"{name}.{field}"
        for name, section in {"": schema, **schema["$defs"]}.items()
        for field, value in section.get("properties", {}).items()
        if not value.keys() & {"description", "$ref"}  # a section describes itself
    ]
    assert missing == []
