"""JSON Schemas of manifest files, for completion and checks in editors.

A file may be incomplete, as extends, project defaults and engine presets add to it. So no field is
required: the loader checks for missing fields once all layers are merged.
"""

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from buildsys.manifest.schema.base import Spec
from buildsys.manifest.schema.project import ProjectSpec
from buildsys.project.model import ModelSpec

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PATH: Schema = {"type": "string", "minLength": 1}
_USE: Schema = {**_PATH, "description": "Engine preset of engines.yaml to start from."}
_ALONE = ("model", "extends", "matrix")  # not allowed in project defaults


class _FileFields(Spec):
    """Fields that are applied before the others are checked."""

    extends: str | tuple[str, ...] = ()
    """Manifests to merge under this one, relative to this file; later ones win."""
    matrix: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field({})
    """Field path -> values: one model per combination, named MODEL-VALUE…."""
    dynamic_axes: dict[str, dict[str, str] | tuple[int, ...]] = Field({})
    """As in torch.onnx.export: tensor -> {axis: dimension} or a list of axes."""


def write_schemas(folder: Path) -> list[Path]:
    """Write the JSON Schemas; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schema_texts().items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in schema_texts()]


@cache  # they take half a second
def schema_texts() -> dict[str, str]:
    """Return file name -> text of every JSON Schema."""
    model, project = _model_schema(), _partial(ProjectSpec.model_json_schema())
    engine = model["properties"]["engines"]["items"]["anyOf"][1]
    presets = {"type": "object", "additionalProperties": engine, "$defs": model["$defs"]}
    sections = {name: field for name, field in model["properties"].items() if name not in _ALONE}
    project["$defs"] |= model["$defs"]
    project["properties"]["defaults"] = {
        "type": "object",
        "description": project["properties"]["defaults"]["description"],
        "properties": sections,
        "additionalProperties": False,
    }
    schemas = {
        "model.schema.json": ("A model's manifest", model),
        "project.schema.json": ("Project settings", project),
        "engines.schema.json": ("Engine presets", presets),
    }
    return {
        file: json.dumps({"$schema": _DIALECT, "title": title, **schema}, indent=2) + "\n"
        for file, (title, schema) in schemas.items()
    }


def _model_schema() -> Schema:
    schema: Schema = _partial(ModelSpec.model_json_schema(by_alias=True))
    for section in schema["$defs"].values():
        if "backend" in section.get("properties", {}):
            section["properties"]["use"] = _USE
    fields = schema["properties"]
    for name, field in fields.items():  # a section is described by its class
        section = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2])
        if section and "description" not in field:
            fields[name] = {**field, "description": section["description"]}
    preset = {**_PATH, "description": "Name of an engine preset."}
    fields["engines"]["items"] = {"anyOf": [preset, fields["engines"]["items"]]}
    # without the pattern, which placeholders do not match
    fields["model"] = {"type": "string", "description": fields["model"]["description"]}
    fields |= _partial(_FileFields.model_json_schema())["properties"]
    return schema


def _partial(schema: Any) -> Any:
    """Drop constraints of complete data, and let partial members match several kinds."""
    if isinstance(schema, list):
        return [_partial(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = ("required", "discriminator", "title", "minProperties")
    partial = {
        name: _partial(member)
        for name, member in schema.items()
        if name not in dropped or isinstance(member, dict)  # a field may have one of these names
    }
    if "oneOf" in partial:
        partial["anyOf"] = partial.pop("oneOf")
    return partial
