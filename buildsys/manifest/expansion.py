"""Expansion of ``matrix`` into models, and of ``dynamic_axes`` into shapes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from buildsys.manifest.layers import merge
from buildsys.manifest.problem import Problem, expected, show_value, suggest
from buildsys.manifest.value_tree import FieldPath, ValueNode, nearest, plain, replace_at

MAX_MODELS = 1000

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]+")
_LONGEST_LABEL = 256  # characters of a value in a name
_INTEGER = re.compile(r"-?[0-9]{1,9}")

Axis = tuple[FieldPath, list[ValueNode]]


def expand_matrix(tree: ValueNode) -> tuple[list[ValueNode], list[Problem]]:
    """Return one tree per combination; without a matrix, the tree itself.

    The last axis varies fastest. Placeholders in the name, such as ``net-op{export.opset}``, are
    replaced by values; to any other name, ``-VALUE`` is appended per axis.
    """
    matrix = tree.get("matrix")
    if matrix is None:
        named, problems = _rename(tree, [])
        return [named], problems
    tree = tree.without("matrix")
    axes, problems = _axes(matrix)
    if problems:
        return [tree], problems
    trees = []
    for values in itertools.product(*(values for _, values in axes)):
        variant = tree
        for (path, _), value in zip(axes, values, strict=True):
            existing, missing = nearest(variant, _indexed(variant, path))
            new = value if missing else merge(existing, value, path)
            try:
                variant = replace_at(variant, path, new)
            except LookupError as error:
                text = f"unknown field {'.'.join(map(str, path))}"
                problems.append(Problem(value.origin, text, f"{error.args[0]} does not exist"))
        variant, found = _rename(variant, values)
        problems += found
        trees.append(variant)
    nodes = [node for variant in trees if (node := variant.get("model"))]
    names = [node.value for node in nodes if isinstance(node.value, str)]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None and not problems:
        text = f"two combinations are both named {show_value(duplicate)}"
        hint = "put placeholders such as {export.opset} into the name"
        problems.append(Problem(matrix.origin, text, hint))
    return trees, problems


def _axes(matrix: ValueNode) -> tuple[list[Axis], list[Problem]]:
    if not isinstance(matrix.value, dict):
        return [], [Problem(matrix.origin, expected("a map of field paths to lists", matrix.value))]
    axes: list[Axis] = []
    problems = []
    for name, values in matrix.items():
        path: FieldPath = tuple(name.split("."))
        if path[0] in ("model", "extends", "matrix"):
            text = f"a matrix cannot vary {path[0]}"
            problems.append(Problem(values.origin, text, "remove it", of_key=True))
        elif not isinstance(values.value, list) or not values.value:
            problems.append(Problem(values.origin, expected("a list of values", values.value)))
        else:
            axes.append((path, values.value))
    count = math.prod(len(values) for _, values in axes)
    if count > MAX_MODELS:
        text = f"the matrix has {count} combinations, more than {MAX_MODELS}"
        problems.append(Problem(matrix.origin, text, "split it into several manifests"))
    return axes, problems


def _indexed(tree: ValueNode, path: FieldPath) -> FieldPath:
    """Return ``path`` with digits as indexes wherever the tree has a list."""
    indexed: list[str | int] = []
    for step in path:
        node, missing = nearest(tree, tuple(indexed))
        in_list = not missing and isinstance(node.value, list) and str(step).isdecimal()
        indexed.append(int(step) if in_list else step)
    return tuple(indexed)


def _rename(tree: ValueNode, values: Sequence[ValueNode]) -> tuple[ValueNode, list[Problem]]:
    model = tree.get("model")
    if model is None or not isinstance(model.value, str):
        return tree, []
    problems = []

    def fill(match: re.Match[str]) -> str:
        node, missing = nearest(tree, _indexed(tree, tuple(match[1].split("."))))
        if missing:
            text = f"the name uses {{{match[1]}}}, which is not set"
            problems.append(Problem(model.origin, text, "set the field, or use another one"))
        return "" if missing else _label(plain(node))

    name: str = _PLACEHOLDER.sub(fill, model.value)
    if name == model.value:
        name = "-".join([name, *(_label(plain(value)) for value in values)])
    return tree.with_member("model", ValueNode(name, model.origin)), problems


def _label(value: Any) -> str:
    """Return a value as a part of a model's name."""
    if value in ("", [], {}):
        return "empty"
    if isinstance(value, (dict, list)):
        members = value.values() if isinstance(value, dict) else value
        return "-".join(map(_label, members))
    is_word = value is None or isinstance(value, bool)
    word = show_value(value) if is_word else str(value)
    return _NOT_IN_NAMES.sub("-", word[:_LONGEST_LABEL])


def name_dynamic_axes(tree: ValueNode) -> tuple[ValueNode, list[Problem]]:
    """Move the ``dynamic_axes`` of torch.onnx.export into named sizes of shapes.

    A list of axes, ``{input0: [0]}``, gets the names torch would make: input0_dynamic_axes_1, ….
    """
    axes = tree.get("dynamic_axes")
    if axes is None:
        return tree, []
    tree = tree.without("dynamic_axes")
    if not isinstance(axes.value, dict):
        return tree, [Problem(axes.origin, expected("a map of tensor names", axes.value))]
    problems: list[Problem] = []
    for tensor, named in axes.items():
        parts = {part: node for part in ("inputs", "outputs") if (node := tree.get(part))}
        section = next((part for part, node in parts.items() if node.get(tensor)), None)
        if section is None:
            known = [name for part in parts.values() for name, _ in part.items()]
            text, hint = f'unknown input or output "{tensor}"', suggest(tensor, known)
            problems.append(Problem(named.origin, text, hint, of_key=True))
            continue
        member = parts[section].value[tensor]
        shape = member.get("shape")
        if shape is None or not isinstance(shape.value, list):
            continue  # an output gets its axes from the graph; an input without shape is an error
        sizes = ValueNode(_named_sizes(tensor, named, shape.value, problems), shape.origin)
        member = member.with_member("shape", sizes)
        tree = tree.with_member(section, parts[section].with_member(tensor, member))
    return tree, problems


def _named_sizes(
    tensor: str, named: ValueNode, shape: list[ValueNode], problems: list[Problem]
) -> list[ValueNode]:
    """Return a shape with names at the dynamic axes."""
    sizes, is_map = list(shape), isinstance(named.value, dict)
    if is_map:
        entries: list[tuple[Any, ValueNode]] = list(named.value.items())
    elif isinstance(named.value, list):
        stem = re.sub(r"\W", "_", tensor)
        entries = [
            (node.value, ValueNode(f"{stem}_dynamic_axes_{number}", node.origin))
            for number, node in enumerate(named.value, start=1)
        ]
    else:
        what = "a map such as {0: batch} or a list of axes"
        problems.append(Problem(named.origin, expected(what, named.value)))
        return sizes
    for axis, name in entries:
        if isinstance(axis, bool) or not _INTEGER.fullmatch(str(axis)):
            text = f"expected an integer as axis, found {show_value(axis)}"
            problems.append(Problem(name.origin, text))
        elif not isinstance(name.value, str):
            problems.append(Problem(name.origin, expected("the name of a dimension", name.value)))
        elif not -len(sizes) <= int(axis) < len(sizes):
            text = f'axis {axis} is outside the shape of "{tensor}" ({len(sizes)} dimensions)'
            problems.append(Problem(name.origin, text, "count axes from 0", of_key=is_map))
        elif not isinstance(sizes[int(axis)].value, str):
            sizes[int(axis)] = name
        elif is_map and sizes[int(axis)].value != name.value:
            in_shape = sizes[int(axis)].value
            text = (
                f'axis {axis} of "{tensor}" is named {name.value} here and {in_shape} in its shape'
            )
            problems.append(Problem(name.origin, text, "use one name"))
    return sizes
