"""Translation of pydantic's errors into problems for a manifest's author."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from buildsys.manifest.problem import Problem, expected, problem_at, show_value, suggest
from buildsys.manifest.schema.base import PATTERN_WORDS
from buildsys.manifest.schema.model import BACKENDS
from buildsys.manifest.schema.network import DATA_KINDS, SOURCE_KINDS
from buildsys.manifest.schema.operators import LIBRARY_KINDS, PLUGIN_KINDS
from buildsys.manifest.surgery_interface import KINDS as STEP_KINDS
from buildsys.manifest.value_tree import FieldPath, ValueNode

_OTHER_NAMES = {  # names from torch and other tools -> ours
    "opset_version": "opset", "dynamo": "exporter", "input_names": "inputs",
    "output_names": "outputs", "dynamic_shapes": "dims", "name": "model", "type": "dtype",
    "fp16": "precision", "threads": "intra_op_threads", "sha": "sha256", "tolerance": "rtol",
}  # fmt: skip
_KINDS = {  # pydantic's error type -> fields that select the kind
    "source_kind": SOURCE_KINDS,
    "data_kind": DATA_KINDS,
    "step_kind": STEP_KINDS,
    "library_kind": LIBRARY_KINDS,
    "plugin_kind": PLUGIN_KINDS,
}
_FILE_FIELDS = {"ModelSpec": ("extends", "matrix", "dynamic_axes")}  # resolved before validation
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
    "dim": "a non-negative integer or the name of a dimension",
    "scalar": "a number, a string, true or false",
    "modules": "true, false or a list of class paths",
    "switches": "true, false or a list of both",
}
_BOUNDS = {  # pydantic's error type -> limit in its context, words
    "greater_than_equal": ("ge", "at least {:g}"),
    "less_than_equal": ("le", "at most {:g}"),
    "greater_than": ("gt", "more than {:g}"),
    "less_than": ("lt", "less than {:g}"),
    "too_short": ("min_length", "at least {}"),
    "too_long": ("max_length", "at most {}"),
    "string_too_short": ("min_length", "at least {}"),
    "string_too_long": ("max_length", "at most {}"),
}


@dataclass
class SchemaFindings:
    """Problems found by the schema, and the fields left unknown."""

    problems: list[Problem] = field(default_factory=list)
    refused: list[FieldPath] = field(default_factory=list)


def schema_findings(
    error: ValidationError, tree: ValueNode, root: Any, unknown: Iterable[FieldPath] = ()
) -> SchemaFindings:
    """Return the findings on ``tree``, validated as the type ``root``.

    A misspelled field leaves the intended one unknown: only the misspelling is reported.
    ``unknown`` are fields that a file already reported may set.
    """
    findings = SchemaFindings(refused=[*unknown])
    missing: list[tuple[FieldPath, Problem]] = []
    for found in error.errors(include_url=False):
        location, kind = found["loc"], found["type"]
        # without the steps added by pydantic, such as [key]
        path: FieldPath = tuple(step for step in location if not _INTERNAL.fullmatch(str(step)))
        if kind == "too_short" and len(found["input"]) >= found["ctx"]["min_length"]:
            continue  # pydantic does not count entries that it has already reported
        findings.refused.append(path)
        if kind == "extra_forbidden":
            known, name = known_fields(root, location[:-1]), str(path[-1])
            other = _OTHER_NAMES.get(name, "")
            hint = f"did you mean {other}?"
            hint = hint if other in known else suggest(name, known, what="known fields")
            if hint.startswith("did you mean "):
                intended = hint.removeprefix("did you mean ").removesuffix("?")
                findings.refused.append((*path[:-1], intended))
            problem = problem_at(tree, path, "unknown field", hint, of_key=True)
        elif kind == "missing":
            missing.append((path, problem_at(tree, path, "required field is missing")))
            continue
        else:
            text, hint = _sentence(found)
            if kind == "backend" and isinstance(found["input"], dict):
                path = (*path, "backend") if "backend" in found["input"] else path
            problem = problem_at(tree, path, text, hint, of_key=location[-1:] == ("[key]",))
        findings.problems.append(problem)
    explained = [path for path in findings.refused if findings.refused.count(path) > 1]
    findings.problems += [problem for path, problem in missing if path not in explained]
    return findings


def known_fields(root: Any, location: FieldPath) -> list[str]:
    """Return the field names at ``location``, a path with union tags."""
    for step in location:
        root = _step(root, step)
    specs = [member for member in (root, *_members(root)) if _is_spec(member)]
    names = [name for spec in specs for name in _fields(spec)]
    return names + [name for spec in specs for name in _FILE_FIELDS.get(spec.__name__, ())]


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
    if kind in _KINDS or kind == "backend":
        return _unknown_kind(kind, value)
    if kind in _BOUNDS:
        limit, words = _BOUNDS[kind]
        units = {"too": ("entries", "entry"), "str": ("characters", "character")}.get(kind[:3])
        unit = f" {units[context[limit] == 1]}" if units else ""
        return expected(words.format(context[limit]) + unit, value), ""
    return f"invalid value {show_value(value)}", ""


def _unknown_kind(kind: str, value: Any) -> tuple[str, str]:
    """Return problem and hint for a union with no matching member."""
    if not isinstance(value, dict):
        return expected("a map", value), ""
    if kind == "backend":
        if "backend" not in value:
            hint = f"add backend: {', '.join(BACKENDS[:-1])} or {BACKENDS[-1]}, or use: PRESET"
            return "the engine has no backend", hint
        hint = suggest(str(value["backend"]), BACKENDS, what="backends")
        return f"unknown backend {show_value(value['backend'])}", hint
    hints = (suggest(str(name), _KINDS[kind]) for name in value)
    close = next((hint for hint in hints if hint.startswith("did you mean")), "")
    return f"expected one of the fields {', '.join(_KINDS[kind])}", close


def _step(root: Any, step: str | int) -> Any:
    """Return the type of a member, or None."""
    for candidate in (root, *_members(root)):
        tags = (
            item.tag for item in getattr(candidate, "__metadata__", ()) if isinstance(item, Tag)
        )
        if isinstance(step, str) and next(tags, None) == step:
            return candidate
        bare = _bare(candidate)
        if _is_spec(bare) and step in (fields := _fields(bare)):
            return fields[str(step)]
        if get_origin(bare) is dict and isinstance(step, str):
            return get_args(bare)[1]
        if get_origin(bare) is tuple and isinstance(step, int):
            return get_args(bare)[0]
    return None


def _members(root: Any) -> list[Any]:
    """Return the members of a union, or the annotated type."""
    bare = _bare(root)
    if get_origin(bare) in (Union, types.UnionType):
        return [inner for member in get_args(bare) for inner in (member, *_members(member))]
    return [bare] if bare is not root else []


def _bare(root: Any) -> Any:
    return root.__origin__ if hasattr(root, "__metadata__") else root


def _is_spec(root: Any) -> bool:
    return isinstance(root, type) and get_origin(root) is None and issubclass(root, BaseModel)


def _fields(spec: type[BaseModel]) -> dict[str, Any]:
    return {info.alias or name: info.annotation for name, info in spec.model_fields.items()}
