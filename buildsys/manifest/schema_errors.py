"""Translation of pydantic's errors into problems for a manifest's author."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from buildsys.manifest.problem import Problem, expected, problem_at, show_value, suggest
from buildsys.manifest.schema.base import PATTERN_WORDS, fields_of
from buildsys.manifest.schema.model import ModelSpec
from buildsys.manifest.value_tree import FieldPath, ValueNode

_OTHER_NAMES = {  # names from torch and other tools -> ours
    "opset_version": "opset", "dynamo": "exporter", "input_names": "inputs",
    "output_names": "outputs", "dynamic_shapes": "dims", "name": "model", "type": "dtype",
    "fp16": "precision", "threads": "intra_op_threads", "sha": "sha256", "tolerance": "rtol",
}  # fmt: skip
_REMOVED = {  # section and field -> problem and hint
    ("gates", "revision"): (
        "gates do not compare with a git revision any more",
        "remove it to compare with the last build that passed, or set `engine`, or a `limit`",
    ),
}
_FILE_FIELDS = ("extends", "matrix", "dynamic_axes")  # resolved before validation
_INTERNAL = re.compile(r"\[key\]|<.*>", re.DOTALL)
_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a map",
    "model_type": "a map",
    "tuple_type": "a list",
    "finite_number": "a finite number",
}
_BOUNDS = {  # pydantic's error type -> limit in its context, words
    "greater_than_equal": ("ge", "at least {:g}"),
    "less_than_equal": ("le", "at most {:g}"),
    "greater_than": ("gt", "more than {:g}"),
    "less_than": ("lt", "less than {:g}"),
    "too_short": ("min_length", "at least {}"),
    "too_long": ("max_length", "at most {}"),
}


def schema_problems(
    error: ValidationError, tree: ValueNode, root: Any, unknown: Iterable[FieldPath] = ()
) -> tuple[list[Problem], list[FieldPath]]:
    """Return the problems of ``tree``, validated as ``root``, and the refused fields.

    A misspelled field leaves the intended one unknown: only the misspelling is reported.
    ``unknown`` are fields that a file already reported may set.
    """
    problems: list[Problem] = []
    refused = [*unknown]
    missing: list[tuple[FieldPath, Problem]] = []
    for found in error.errors(include_url=False):
        location, kind = found["loc"], found["type"]
        # without the steps added by pydantic, such as [key]
        path: FieldPath = tuple(step for step in location if not _INTERNAL.fullmatch(str(step)))
        if kind == "too_short" and len(found["input"]) >= found["ctx"]["min_length"]:
            continue  # pydantic does not count entries that it has already reported
        refused.append(path)
        if kind == "extra_forbidden" and (removed := _REMOVED.get(_last_names(path))):
            problem = problem_at(tree, path, *removed, of_key=True)
        elif kind == "extra_forbidden":
            known, name = known_fields(root, location[:-1]), str(path[-1])
            other = _OTHER_NAMES.get(name, "")
            hint = f"did you mean {other}?"
            hint = hint if other in known else suggest(name, known, what="known fields")
            if hint.startswith("did you mean "):
                intended = hint.removeprefix("did you mean ").removesuffix("?")
                refused.append((*path[:-1], intended))
            problem = problem_at(tree, path, "unknown field", hint, of_key=True)
        elif kind == "missing":
            missing.append(
                (path, problem_at(tree, path, "required field is missing", "add the field"))
            )
            continue
        else:
            text, hint = _sentence(found)
            if kind == "one_of" and isinstance(found["input"], dict):
                field_of_kind = found["ctx"]["field"]
                path = (*path, field_of_kind) if field_of_kind in found["input"] else path
            problem = problem_at(tree, path, text, hint, of_key=location[-1:] == ("[key]",))
        problems.append(problem)
    explained = [path for path in refused if refused.count(path) > 1]
    problems += [problem for path, problem in missing if path not in explained]
    return problems, refused


def _last_names(path: FieldPath) -> tuple[str, str]:
    section, field = ("", *map(str, path))[-2:]
    return section, field


def known_fields(root: Any, location: FieldPath) -> list[str]:
    """Return the field names at ``location``, a path with union tags."""
    for step in location:
        root = _member(root, step)
    specs = [member for member in _members(root) if _is_spec(member)]
    names = [name for spec in specs for name in _fields(spec)]
    return [*names, *_FILE_FIELDS] if ModelSpec in specs else names


def _sentence(found: ErrorDetails) -> tuple[str, str]:
    """Return problem and hint."""
    kind, context, value = found["type"], found.get("ctx", {}), found["input"]
    if kind == "value_error":
        return str(context["error"]), ""
    if kind == "literal_error":
        known = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        hint = suggest(str(value), known, what="expected one of")
        return f"unknown value {show_value(value)}", hint
    if kind == "string_pattern_mismatch":
        return expected(PATTERN_WORDS[context["pattern"]], value), ""
    if kind in _EXPECTED:
        return expected(_EXPECTED[kind], value), ""
    if kind == "form":
        return expected(context["words"], value), ""
    if kind == "one_of":
        gone = [name for name in fields_of(value) if name in context["removed"].split(", ")]
        if gone:
            return f"{gone[0]} was removed", context["instead"]
        return _unknown_kind(context["kinds"].split(", "), context["field"], value)
    if bound := _BOUNDS.get(kind.removeprefix("string_")):
        limit, words = bound
        units = {"too": ("entries", "entry"), "str": ("characters", "character")}.get(kind[:3])
        unit = f" {units[context[limit] == 1]}" if units else ""
        is_percentage = not units and isinstance(value, str) and value.rstrip().endswith("%")
        number, unit = (100 * context[limit], "%") if is_percentage else (context[limit], unit)
        return expected(words.format(number) + unit, value), ""
    return f"invalid value {show_value(value)}", ""


def _unknown_kind(kinds: list[str], field: str, value: Any) -> tuple[str, str]:
    """Return problem and hint for a union with no matching member."""
    if not isinstance(value, dict):
        return expected("a map", value), ""
    if not field:
        hints = (suggest(str(name), kinds) for name in value)
        close = next((hint for hint in hints if hint.startswith("did you mean")), "")
        return f"expected one of the fields {', '.join(kinds)}", close
    if field not in value:
        one = f"add {field}: {', '.join(kinds[:-1])} or {kinds[-1]}"
        if field == "backend":
            return f"the engine has no {field}", f"{one}, or use: PRESET"
        return f"the map has no {field}", one
    plural = "policies" if field == "policy" else f"{field}s"
    hint = suggest(str(value[field]), kinds, what=plural)
    if field == "backend" and not hint.startswith("did you mean"):
        hint += "; or pip install the package that has it (docs/backends.md)"
    return f"unknown {field} {show_value(value[field])}", hint


def _member(annotation: Any, step: str | int) -> Any:
    """Return the type of a member, or None."""
    for kind in _members(annotation):
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is dict and isinstance(step, str):
            return arguments[1]
        if origin is tuple and isinstance(step, int):
            return arguments[0]
        if _is_spec(kind):
            if step == f"<{kind.__name__}>":
                return kind
            if step in (fields := _fields(kind)):
                return fields[str(step)]
    return None


def _members(annotation: Any) -> list[Any]:
    """Return the types of a union without annotations, or the only type."""
    for mark in getattr(annotation, "__metadata__", ()):
        if hasattr(mark, "load"):
            return _members(mark.load())
    bare = annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
    if get_origin(bare) in (Union, types.UnionType):
        return [inner for member in get_args(bare) for inner in _members(member)]
    return [bare]


def _is_spec(root: Any) -> bool:
    return isinstance(root, type) and get_origin(root) is None and issubclass(root, BaseModel)


def _fields(spec: type[BaseModel]) -> dict[str, Any]:
    return {info.alias or name: info.annotation for name, info in spec.model_fields.items()}
