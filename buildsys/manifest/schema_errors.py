"""Translation of pydantic's errors for a manifest's author."""

import re
import types
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from buildsys.errors import ManifestError
from buildsys.manifest.problem import expected, show_value, suggest
from buildsys.manifest.schema.base import PATTERN_WORDS, fields_of
from buildsys.manifest.value_tree import FieldPath, ValueNode, error_at
from buildsys.system.printable import nearest

_OTHER_NAMES = {  # names from torch and other tools -> ours
    "opset_version": "opset", "dynamo": "exporter", "input_names": "inputs",
    "output_names": "outputs", "dynamic_shapes": "dims", "name": "model", "type": "dtype",
    "fp16": "precision", "threads": "intra_op_threads", "sha": "sha256", "tolerance": "rtol",
}  # fmt: skip
_FILE_FIELDS = ("extends", "matrix", "dynamic_axes")  # resolved before validation
_INTERNAL = re.compile(r"\[key\]|<.*>", re.DOTALL)
# pydantic's messages: what is expected, without what it says of the value and of our classes
_MESSAGE = re.compile(r"(?:Input should be|\w+ should have) (.*?)(?: (?:after|or instance) .*)?")


def schema_errors(
    error: ValidationError, tree: ValueNode, root: Any
) -> tuple[list[ManifestError], list[FieldPath]]:
    """Translate the errors of ``tree``, validated as ``root``; return also the refused fields.

    A misspelled field leaves the intended one unset: only the misspelling is reported.
    """
    errors: list[ManifestError] = []
    refused: list[FieldPath] = []
    missing: list[FieldPath] = []
    for details in error.errors(include_url=False):
        location, kind, context = details["loc"], details["type"], details.get("ctx", {})
        # without the steps added by pydantic, such as [key]
        path: FieldPath = tuple(step for step in location if not _INTERNAL.fullmatch(str(step)))
        if kind == "too_short" and len(details["input"]) >= context["min_length"]:
            continue  # pydantic does not count entries that it has already reported
        if kind == "missing":
            missing.append(path)
        elif kind == "extra_forbidden":
            names, name = field_names(root, location[:-1]), str(location[-1])
            close = [other for other in [_OTHER_NAMES.get(name, "")] if other in names]
            close = close or nearest(name, names, count=1)
            refused += [(*path[:-1], intended) for intended in close]
            hint = suggest(close[0] if close else name, names, what="known fields")
            errors.append(error_at(tree, path, "unknown field", hint, of_key=True))
        else:
            if kind != "refusal":  # its value has the right form
                refused.append(path)
            if kind == "one_of" and context["field"] in fields_of(details["input"]):
                path = (*path, context["field"])
            is_key = location[-1:] == ("[key]",)
            errors.append(error_at(tree, path, *_sentence(details), of_key=is_key))
    errors += [
        error_at(tree, path, "required field is missing", "add the field")
        for path in missing
        if path not in refused  # else it is misspelled
    ]
    return errors, [*refused, *missing]


def field_names(root: Any, location: FieldPath) -> list[str]:
    """List the names of the fields at ``location``, a path with union tags."""
    for step in location:
        root = _member(root, step)
    specs = [member for member in _members(root) if _is_spec(member)]
    names = [name for spec in specs for name in _fields(spec)]
    is_model = any(spec.__name__ == "ModelSpec" for spec in specs)
    return [*names, *_FILE_FIELDS] if is_model else names


def _sentence(details: ErrorDetails) -> tuple[str, str]:
    """Describe an error: problem and hint."""
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    if kind == "refusal":
        return context["problem"], context["hint"]
    if kind == "value_error":
        return str(context["error"]), ""
    if kind == "literal_error":
        words = context["expected"].replace(" or ", ", ").split(", ")
        hint = suggest(str(value), [word.strip("'") for word in words], what="expected one of")
        return f"unknown value {show_value(value)}", hint
    if kind == "one_of":
        return _unknown_kind(context["kinds"].split(", "), context["field"], value)
    words = context.get("words") or PATTERN_WORDS.get(context.get("pattern", ""))
    if not words and (match := _MESSAGE.fullmatch(details["msg"])):
        words = match[1].replace("dictionary", "map").replace("tuple", "list")
        words = f"a value {words}" if words.startswith(("greater", "less")) else words
    return (expected(words, value) if words else f"invalid value {show_value(value)}"), ""


def _unknown_kind(kinds: list[str], field: str, value: Any) -> tuple[str, str]:
    """Describe a value of a union with no matching member."""
    if not isinstance(value, dict):
        return expected("a map", value), ""
    if not field:
        hints = (suggest(str(name), kinds) for name in value)
        close = next((hint for hint in hints if hint.startswith("did you mean")), "")
        return f"expected one of the fields {', '.join(kinds)}", close
    if field not in value:
        return f"the map has no {field}", f"add {field}: {', '.join(kinds)}"
    hint = suggest(str(value[field]), kinds, what="expected one of")
    if field == "backend" and not hint.startswith("did you mean"):
        hint += "; or pip install the package that has it (docs/backends.md)"
    return f"unknown {field} {show_value(value[field])}", hint


def _member(annotation: Any, step: str | int) -> Any:
    """Find the type of a member, or None."""
    for kind in _members(annotation):
        if get_origin(kind) in (dict, tuple):
            return get_args(kind)[1 if get_origin(kind) is dict else 0]
        if _is_spec(kind):
            if step == f"<{kind.__name__}>":
                return kind
            if step in (fields := _fields(kind)):
                return fields[str(step)]
    return None


def _members(annotation: Any) -> list[Any]:
    """List the types of a union without annotations, or the only type."""
    bare = annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
    if get_origin(bare) in (Union, types.UnionType):
        return [inner for member in get_args(bare) for inner in _members(member)]
    return [bare]


def _is_spec(root: Any) -> bool:
    return isinstance(root, type) and get_origin(root) is None and issubclass(root, BaseModel)


def _fields(spec: type[BaseModel]) -> dict[str, Any]:
    return {info.alias or name: info.annotation for name, info in spec.model_fields.items()}
