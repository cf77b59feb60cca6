"""JSON Schemas of what the *files* may hold, for completion and checks in editors.

A file need not be complete (extends, project defaults and engine profiles add to it), so nothing is required;
the loader checks what is missing once all layers are there.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from buildsys.manifest.schema.engines import Engine
from buildsys.manifest.schema.model import ModelSpec
from buildsys.manifest.schema.project import ProjectSpec

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PATH: Schema = {"type": "string", "minLength": 1}
_MATRIX: Schema = {
    "type": "object",
    "description": "Field path -> values: one model per combination, named MODEL-VALUE… or by placeholders in `model`.",
    "additionalProperties": {"type": "array", "minItems": 1},
}
_DYNAMIC_AXES: Schema = {
    "type": "object",
    "description": "As in torch.onnx.export: tensor -> {axis: dimension} or a list of axes. Better: names in `shape`.",
    "additionalProperties": {
        "anyOf": [
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "array", "items": {"type": "integer"}},
        ]
    },
}
_EXTENDS: Schema = {
    "anyOf": [_PATH, {"type": "array", "items": _PATH}],
    "description": "Manifests to lay this one over, relative to this file; later ones win.",
}
_USE: Schema = {**_PATH, "description": "Engine profile of engines.yaml to start from."}


def editor_schemas() -> dict[str, Schema]:
    """Return file name -> JSON Schema for manifests, project.yaml and engines.yaml."""
    return {
        "model.schema.json": _with_dialect(_model_schema(), "A model's manifest"),
        "project.schema.json": _with_dialect(_project_schema(), "Project settings"),
        "engines.schema.json": _with_dialect(_engines_schema(), "Engine profiles"),
    }


def _model_schema() -> Schema:
    schema: Schema = _partial(ModelSpec.model_json_schema(by_alias=True))
    _allow_use(schema)
    _describe_sections(schema)
    engines = schema["properties"]["engines"]
    engines["items"] = {
        "anyOf": [{**_PATH, "description": "Name of an engine profile."}, engines["items"]]
    }
    # placeholders are no part of a finished name
    schema["properties"]["model"] = {
        "type": "string",
        "description": "Name of the model in targets and paths.",
    }
    schema["properties"] |= {"extends": _EXTENDS, "matrix": _MATRIX, "dynamic_axes": _DYNAMIC_AXES}
    return schema


def _project_schema() -> Schema:
    schema: Schema = _partial(ProjectSpec.model_json_schema())
    model = _model_schema()
    alone = ("model", "extends", "matrix")
    sections = {name: field for name, field in model["properties"].items() if name not in alone}
    schema["$defs"] = model["$defs"]
    schema["properties"]["defaults"] = {
        "type": "object",
        "description": schema["properties"]["defaults"]["description"],
        "properties": sections,
        "additionalProperties": False,
    }
    return schema


def _engines_schema() -> Schema:
    schema = _partial(TypeAdapter(Engine).json_schema())
    definitions = schema.pop("$defs")
    _allow_use({"$defs": definitions})
    for engine in _engine_definitions(definitions):
        del engine["properties"]["name"]  # the key is the name
    return {"type": "object", "additionalProperties": schema, "$defs": definitions}


def _allow_use(schema: Schema) -> None:
    for engine in _engine_definitions(schema["$defs"]):
        engine["properties"]["use"] = _USE


def _engine_definitions(definitions: Schema) -> list[Schema]:
    return [
        definition
        for definition in definitions.values()
        if "backend" in definition.get("properties", {})
    ]


def _describe_sections(schema: Schema) -> None:
    """Give a field without a description that of the section it holds."""
    for name, field in schema["properties"].items():
        reference = field.get("$ref", "").rpartition("/")[2]
        if "description" not in field and reference:
            schema["properties"][name] = {
                **field,
                "description": schema["$defs"][reference]["description"],
            }


def _partial(schema: Any) -> Any:
    """Drop what only holds for complete data, and let partial members match more than one kind."""
    if isinstance(schema, list):
        return [_partial(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _partial(member)
        for name, member in schema.items()
        if not _is_required_list(name, member)
    }
    if "oneOf" in kept:
        kept["anyOf"] = kept.pop("oneOf")
    return kept


def _is_required_list(name: str, member: Any) -> bool:
    # a field may be called "required" too; its schema is a map
    return name in ("required", "discriminator", "title", "minProperties") and not isinstance(
        member, dict
    )


def _with_dialect(schema: Schema, title: str) -> Schema:
    return {"$schema": _DIALECT, "title": title, **schema}
