"""Page of all manifest fields, from the schema."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from buildsys.manifest.schema.base import PATTERN_WORDS, Spec
from buildsys.manifest.schema.project import ProjectSpec
from buildsys.project.json_schema import schema_texts
from buildsys.project.model import ModelSpec

Schema = Mapping[str, Any]
_INTRODUCTION = """\
# Manifest fields

Every field of a manifest and of `configs/project.yaml`, generated from the schema.
[The manifest](../manifest.md) explains them with examples. In headings, `NAME` is a name of yours
and `[]` an entry of a list. The default — means not set.

A duration is `3s`, `200ms`, `2min` or a number of seconds; a size is `512MiB`, `8GB` or a number of
bytes; a percentage is `5%` or a number up to 1; a callable is `FILE.py:NAME` or `MODULE:NAME`.

"""
_WORDS = {
    "a name": "name",
    "a tensor name": "tensor name",
    "a word": "word",
    "a callable": "callable",
    "a Python file": "Python file",
    "a SHA-256": "SHA-256",
    "an operator": "operator",
    "a C or C++ file": "C or C++ file",
    "a public key": "public key",
    "the name of an environment variable": "variable",
}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def page() -> str:
    """Return the page in Markdown."""
    model, project = (
        json.loads(schema_texts()[f"{name}.schema.json"]) for name in ("model", "project")
    )
    sections = _sections(model)
    of_project = {spec: paths for spec, paths in _sections(project).items() if spec not in sections}
    return "".join(
        [
            _INTRODUCTION,
            *_part("Models", ModelSpec, sections, model),
            *_part("project.yaml", ProjectSpec, of_project, project),
        ]
    )


def _sections(schema: Schema) -> dict[type[Spec], list[str]]:
    """Return the sections of a file, depth first, with their paths."""
    specs = {spec.__name__: spec for spec in _subclasses(Spec)}
    found: dict[type[Spec], list[str]] = {}

    def add(fields: Schema, path: str) -> None:
        for name, field in fields["properties"].items():
            for suffix, below in _references(field):
                place = f"{path}.{name}{suffix}".removeprefix(".")
                paths = found.setdefault(specs[below], [])
                paths.append(place)
                if len(paths) == 1:
                    add(schema["$defs"][below], place)

    add(schema, "")
    return found


def _subclasses(spec: type[Spec]) -> Iterator[type[Spec]]:
    for below in spec.__subclasses__():
        yield below
        yield from _subclasses(below)


def _references(schema: Schema, suffix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the sections of a value, each with its place in the value."""
    if "$ref" in schema:
        yield suffix, schema["$ref"].rpartition("/")[2]
    for option in schema.get("anyOf", ()):
        yield from _references(option, suffix)
    if "items" in schema:
        yield from _references(schema["items"], f"{suffix}[]")
    for value in _map_values(schema):
        yield from _references(value, f"{suffix}.NAME")


def _map_values(schema: Schema) -> list[Schema]:
    values = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    return [value for value in values if isinstance(value, dict)]


def _part(
    title: str, root: type[Spec], sections: Mapping[type[Spec], list[str]], schema: Schema
) -> Iterator[str]:
    yield f"## {title}\n\n{_summary(root)}\n\n{_table(root, schema, schema['$defs'])}"
    shared = Counter(paths[0] for paths in sections.values())
    for spec, (first, *others) in sections.items():
        fields = schema["$defs"][spec.__name__]
        kind = f": {_kind(spec, fields)}" if shared[first] > 1 else ""
        more = ", ".join(f"`{path}`" for path in dict.fromkeys(others) if path != first)
        also = f" Also at {more}." if more else ""
        yield f"### {first}{kind} {{#{spec.__name__.lower()}}}\n\n{_summary(spec)}{also}\n\n"
        yield _table(spec, fields, schema["$defs"])


def _summary(spec: type[Spec]) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (spec.__doc__ or "").split("\n\n"))


def _kind(spec: type[Spec], schema: Schema) -> str:
    """Return the value or field selecting one of several sections."""
    constants = [field["const"] for field in schema["properties"].values() if "const" in field]
    return str(constants[0]) if constants else next(name for name in _required(spec))


def _required(spec: type[Spec]) -> list[str]:
    return [info.alias or name for name, info in spec.model_fields.items() if info.is_required()]


def _table(spec: type[Spec], schema: Schema, definitions: Schema) -> str:
    fields = {info.alias or name: info for name, info in spec.model_fields.items()}
    required = _required(spec)
    rows = [
        f"| `{name}` | {_type(field)} | {_default(fields.get(name), field)} "
        f"| {_meaning(field, definitions)} |\n"
        for name, field in sorted(
            schema["properties"].items(), key=lambda entry: entry[0] not in required
        )
    ]
    return f"| field | type | default | meaning |\n|---|---|---|---|\n{''.join(rows)}\n"


def _meaning(field: Schema, definitions: Schema) -> str:
    section = definitions.get(field.get("$ref", "").rpartition("/")[2], {})
    text: str = field.get("description") or section.get("description", "")
    return text.replace("\n", " ").replace("|", "\\|")


def _type(schema: Schema) -> str:
    """Return the type of a value in words."""
    if "anyOf" in schema:
        options = [_type(option) for option in schema["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(options))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any value")
    if kind == ["string", "integer"]:
        return "size"
    if kind == ["string", "number"]:
        return "percentage" if 1 in (schema.get("maximum"), schema.get("le")) else "duration"
    if kind == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    if kind == "object":
        return " of ".join(["map", *map(_type, _map_values(schema)[:1])])
    if kind == "string":
        words = PATTERN_WORDS.get(schema.get("pattern", ""), "")
        return next((short for start, short in _WORDS.items() if words.startswith(start)), "string")
    bounds = [f"{sign} {schema[key]:g}" for key, sign in _BOUNDS.items() if key in schema]
    kinds = " or ".join([kind] if isinstance(kind, str) else kind)
    return f"{kinds} {', '.join(bounds)}".strip()


def _default(info: FieldInfo | None, schema: Schema) -> str:
    if info and info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True) if info else None
    if value is None:
        return "—"
    if value == "":
        return "empty"
    return f"`{_yaml(value)}{'s' if _type(schema) == 'duration' else ''}`"


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
