from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from buildsys.manifest.yaml_reader import read_yaml
from buildsys.project.json_schema import schema_texts, write_schemas
from buildsys.project.load import load_project
from buildsys.project.resolved_yaml import resolved_text

ROOT = Path(__file__).parents[3]
SCHEMAS = ("engines.schema.json", "model.schema.json", "project.schema.json")

EVERYTHING = """\
model: "net-{export.opset}"
description: "yes: a name, # and a colon"
source: {torchvision: resnet18, weights: DEFAULT, kwargs: {num_classes: 3, "on": [1, {a: "null"}]}}
inputs:
  x: {shape: [batch, 3, 32, 32], data: {random: normal, std: 2}}
  mask: {shape: [batch], dtype: bool, data: {random: integers}, keyword: mask}
  bias: {shape: [1], data: {constant: -.inf}}
outputs: {y: {shape: [batch, null]}}
dims: {batch: {min: 1, opt: 2, max: 4, odd: 3}}
matrix: {export.opset: [13, 17]}
dynamic_axes: {y: {0: batch}}
export: {custom_opsets: {my.domain: 1}, export_modules_as_functions: [torch.nn.ReLU]}
engines:
  - ort-cpu
  - use: rtx-fp16
    name: profiled
    tolerance: {rtol: 1e-2}
    workspace: 1GiB
    profiles: [{x: {min: [1, 3, 32, 32], opt: [2, 3, 32, 32], max: [4, 3, 32, 32]},
                mask: {min: [1], opt: [2], max: [4]}}]
bench: {duration: 500ms}
timeout: {export: 10min}
"""


@pytest.fixture
def everything(project):
    project.write("configs/models/net.yaml", EVERYTHING)
    return project


def test_each_line_names_the_origin_of_its_value(everything):
    lines = resolved_text(everything.load().models["net-17"]).splitlines()
    by_field = {line.split(":")[0].strip("- "): line for line in lines}
    assert lines[0] == "# net-17, from configs/models/net.yaml"
    assert by_field["opset"].split() == ["opset:", "17", "#", "configs/models/net.yaml:10"]
    assert by_field["workspace"].split() == [
        "workspace:",
        "1073741824",
        "#",
        "configs/models/net.yaml:18",
    ]
    assert by_field["training"].split() == ["training:", "null", "#", "default"]
    assert all("#" in line or line.endswith(":") for line in lines)


def test_a_resolved_text_resolves_to_itself(everything):
    model = everything.load().models["net-17"]
    everything.write("configs/models/net.yaml", resolved_text(model))
    again = everything.load().models["net-17"]
    assert again.data == model.data


def test_every_shipped_manifest_loads_and_resolves_to_itself(project, monkeypatch):
    for folder in ("plugins", "weights"):
        if (ROOT / folder).exists():
            (project.root / folder).symlink_to(ROOT / folder)
    shipped = load_project(ROOT).models
    engines = {engine["backend"] for engine in shipped["resnet50"].data["engines"]}
    assert "tensorrt" in engines  # a GPU host builds it without an edit
    (project.root / "configs/engines.yaml").unlink()
    (project.root / "plugins").unlink()
    shutil.copytree(ROOT / "plugins", project.root / "plugins")
    for name, model in shipped.items():
        if "torchvision" in model.data["source"]:
            project.write(f"configs/models/{name}.yaml", resolved_text(model))
    again = project.load().models
    assert again
    assert {name: model.data for name, model in again.items()} == {
        name: shipped[name].data for name in again
    }


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
    model.validate(read_yaml(Path("net.yaml"), EVERYTHING.encode()))
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
