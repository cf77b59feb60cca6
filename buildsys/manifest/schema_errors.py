"""pydantic's findings in the words of a manifest's author."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from buildsys.manifest.problem import Problem, problem_at, show_value, suggest
from buildsys.manifest.schema.model import (
    BACKENDS,
    DATA_KINDS,
    LIBRARY_KINDS,
    PATTERN_WORDS,
    PLUGIN_KINDS,
    SOURCE_KINDS,
    STEP_KINDS,
)
from buildsys.manifest.value_tree import Key, Node

_OTHER_NAMES = {  # what people write who know the name from torch or from other tools
    "opset_version": "opset", "dynamo": "exporter", "input_names": "inputs", "output_names": "outputs",
    "dynamic_shapes": "dims", "name": "model", "type": "dtype", "fp16": "precision", "threads": "intra_op_threads",
    "sha": "sha256", "tolerance": "rtol",
}  # fmt: skip
_KINDS = {  # pydantic's type of error -> what it is about
    "source_kind": ("the source", SOURCE_KINDS),
    "data_kind": ("the data", DATA_KINDS),
    "step_kind": ("the step", STEP_KINDS),
    "library_kind": ("the library", LIBRARY_KINDS),
    "plugin_kind": ("the plugin", PLUGIN_KINDS),
}
_FILE_FIELDS = {"ModelSpec": ("extends", "matrix", "dynamic_axes")}  # resolved before validation
_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a map",
    "model_type": "a map",
    "tuple_type": "a list",
    "finite_number": "a finite number",
    "dim": "a whole number from 0 or the name of a dimension",
    "scalar": "a number, text, true or false",
    "modules": "true, false or a list of class paths",
    "switches": "true, false or a list of both",
}


def schema_problems(error: ValidationError, tree: Node, root: Any) -> Iterator[Problem]:
    """Yield one problem per finding; ``root`` is the type that ``tree`` was validated as."""
    for found in error.errors(include_url=False):
        location = found["loc"]
        of_key = location[-1:] == ("[key]",) or found["type"] == "extra_forbidden"
        key: Key = tuple(step for step in location if not _made_up(step))
        if found["type"] == "too_short" and len(found["input"]) >= found["ctx"]["min_length"]:
            continue  # pydantic does not count entries that it has reported already
        if (
            found["type"] == "backend"
            and isinstance(found["input"], dict)
            and "backend" in found["input"]
        ):
            key = (*key, "backend")
        text, hint = _sentence(found, key, root)
        yield problem_at(tree, key, text, hint, of_key=of_key)


def known_fields(root: Any, location: Key) -> list[str]:
    """Return the field names of the map at ``location``, a path of pydantic's with its union tags."""
    for step in location:
        root = _step(root, step)
    members = [root, *_members(root)]
    names = [name for member in members if _is_spec(member) for name in _fields(member)]
    return names + [
        name
        for member in members
        if _is_spec(member)
        for name in _FILE_FIELDS.get(member.__name__, ())
    ]


def _made_up(step: str | int) -> bool:
    return isinstance(step, str) and (
        step == "[key]" or (step.startswith("<") and step.endswith(">"))
    )


def _sentence(found: ErrorDetails, key: Key, root: Any) -> tuple[str, str]:
    kind, context, value = found["type"], found.get("ctx", {}), found["input"]
    if kind == "extra_forbidden":
        return "unknown field", _other_field(str(key[-1]), known_fields(root, found["loc"][:-1]))
    if kind == "missing":
        return "the field is missing", ""
    if kind == "value_error":
        return str(context["error"]), ""
    if kind == "literal_error":
        known = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        return f"{show_value(value)} is not allowed here", suggest(str(value), known, what="one of")
    if kind == "string_pattern_mismatch":
        return f"{show_value(value)} is not {PATTERN_WORDS[context['pattern']]}", ""
    if kind in _KINDS or kind == "backend":
        return _no_kind(kind, value)
    if kind in _WANTED:
        return f"found {show_value(value)}; {_WANTED[kind]} is wanted", ""
    return _bound(kind, context, value)


def _bound(kind: str, context: dict[str, Any], value: Any) -> tuple[str, str]:
    sizes = {"too_short": "min_length", "too_long": "max_length", "string_too_long": "max_length"}
    if kind in sizes:
        what = "characters" if kind.startswith("string") else "entries"
        word = "at least" if kind == "too_short" else "at most"
        return f"found {show_value(value)}; {word} {context[sizes[kind]]} {what} are wanted", ""
    words = {
        "greater_than_equal": ("at least", "ge"),
        "less_than_equal": ("at most", "le"),
        "greater_than": ("more than", "gt"),
        "less_than": ("less than", "lt"),
    }
    if kind in words:
        word, limit = words[kind]
        return f"{show_value(value)} is out of range; {word} {context[limit]:g} is wanted", ""
    return f"found {show_value(value)}, which does not fit here", ""


def _no_kind(kind: str, value: Any) -> tuple[str, str]:
    if not isinstance(value, dict):
        return f"found {show_value(value)}; a map is wanted", ""
    if kind == "backend":
        if "backend" not in value:
            return "the engine names no backend", f"one of: {', '.join(BACKENDS)}; or use: PROFILE"
        backend = value["backend"]
        return f"no backend is named {show_value(backend)}", suggest(
            str(backend), BACKENDS, what="backends"
        )
    what, kinds = _KINDS[kind]
    close = next(
        (hint for name in value if "did you mean" in (hint := suggest(str(name), kinds))), ""
    )
    return f"{what} has none of the fields {', '.join(kinds)}", close


def _other_field(name: str, known: list[str]) -> str:
    other = _OTHER_NAMES.get(name)
    return f"did you mean {other}?" if other in known else suggest(name, known, what="known fields")


def _step(root: Any, step: str | int) -> Any:
    """Return the type one step further, or None."""
    candidates = [root, *_members(root)]
    for candidate in candidates:
        if isinstance(step, str) and _tag_of(candidate) == step:
            return candidate
        bare = _bare(candidate)
        if _is_spec(bare) and step in (fields := _fields(bare)):
            return fields[str(step)]
        arguments = get_args(bare)
        if get_origin(bare) is dict and isinstance(step, str):
            return arguments[1]
        if get_origin(bare) is tuple and isinstance(step, int):
            return arguments[0]
    return None


def _members(root: Any) -> list[Any]:
    """Return the members of a union, of unions within it and of what annotations wrap."""
    bare = _bare(root)
    if get_origin(bare) in (Union, types.UnionType):
        return [inner for member in get_args(bare) for inner in (member, *_members(member))]
    return [bare] if bare is not root else []


def _bare(root: Any) -> Any:
    return root.__origin__ if hasattr(root, "__metadata__") else root


def _tag_of(root: Any) -> str | None:
    return next(
        (item.tag for item in getattr(root, "__metadata__", ()) if isinstance(item, Tag)), None
    )


def _is_spec(root: Any) -> bool:
    return isinstance(root, type) and get_origin(root) is None and issubclass(root, BaseModel)


def _fields(spec: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: _annotation(field) for name, field in spec.model_fields.items()}


def _annotation(field: Any) -> Any:
    """Return a field's type; pydantic moves what `Annotated` said of the whole field into the metadata."""
    return field.annotation
