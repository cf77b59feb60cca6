"""Expansion of ``matrix`` into models, and of ``dynamic_axes`` into shapes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from buildsys.errors import ManifestError
from buildsys.manifest.layers import merge
from buildsys.manifest.problem import expected, show_value, suggest
from buildsys.manifest.value_tree import FieldPath, ValueNode, nearest, plain, replace_at

MAX_MODELS = 1000

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]+")
_LONGEST_LABEL = 256  # characters of a value in a name

Axis = tuple[FieldPath, list[ValueNode]]
Errors = list[ManifestError]


def expand_matrix(tree: ValueNode) -> tuple[list[ValueNode], Errors]:
    """Make one tree per combination; without a matrix, the tree itself.

    The last axis varies fastest. Placeholders in the name, such as ``net-op{export.opset}``, are
    replaced by values; to any other name, ``-VALUE`` is appended per axis.
    """
    matrix = tree.get("matrix")
    if matrix is None:
        named, errors = _rename(tree, [])
        return [named], errors
    tree = tree.without("matrix")
    axes, errors = _axes(matrix)
    if errors:
        return [tree], errors
    trees = []
    for values in itertools.product(*(values for _, values in axes)):
        variant = tree
        for (path, _), value in zip(axes, values, strict=True):
            existing, missing = nearest(variant, path)
            new = value if missing else merge(existing, value, path)
            try:
                variant = replace_at(variant, path, new)
            except LookupError as error:
                text = f"unknown field {'.'.join(map(str, path))}"
                errors.append(value.error(text, f"{error.args[0]} does not exist"))
        variant, name_errors = _rename(variant, values)
        errors += name_errors
        trees.append(variant)
    names = [node.value for variant in trees if (node := variant.get("model"))]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if isinstance(duplicate, str) and not errors:
        text = f"two combinations are both named {show_value(duplicate)}"
        hint = "put placeholders such as {export.opset} into the name"
        errors.append(matrix.error(text, hint))
    return trees, errors


def _axes(matrix: ValueNode) -> tuple[list[Axis], Errors]:
    if not isinstance(matrix.value, dict):
        return [], [matrix.error(expected("a map of field paths to lists", matrix.value))]
    axes: list[Axis] = []
    errors = []
    for name, values in matrix.items():
        path: FieldPath = tuple(name.split("."))
        if path[0] in ("model", "extends", "matrix"):
            text = f"a matrix cannot vary {path[0]}"
            errors.append(values.error(text, "remove it", of_key=True))
        elif not values.entries():
            errors.append(values.error(expected("a list of values", values.value)))
        else:
            axes.append((path, values.value))
    count = math.prod(len(values) for _, values in axes)
    if count > MAX_MODELS:
        text = f"the matrix has {count} combinations, more than {MAX_MODELS}"
        errors.append(matrix.error(text, "split it into several manifests"))
    return axes, errors


def _rename(tree: ValueNode, values: Sequence[ValueNode]) -> tuple[ValueNode, Errors]:
    model = tree.get("model")
    if model is None or not isinstance(model.value, str):
        return tree, []
    errors = []

    def fill(match: re.Match[str]) -> str:
        node, missing = nearest(tree, tuple(match[1].split(".")))
        if missing:
            text = f"the name uses {{{match[1]}}}, which is not set"
            errors.append(model.error(text, "set the field, or use another one"))
        return "" if missing else _label(plain(node))

    name: str = _PLACEHOLDER.sub(fill, model.value)
    if name == model.value:
        name = "-".join([name, *(_label(plain(value)) for value in values)])
    return tree.with_member("model", ValueNode(name, model.origin)), errors


def _label(value: Any) -> str:
    """Write a value as a part of a model's name."""
    if value in ("", [], {}):
        return "empty"
    if isinstance(value, (dict, list)):
        members = value.values() if isinstance(value, dict) else value
        return "-".join(map(_label, members))
    is_word = value is None or isinstance(value, bool)
    word = show_value(value) if is_word else str(value)
    return _NOT_IN_NAMES.sub("-", word[:_LONGEST_LABEL])


def name_dynamic_axes(tree: ValueNode) -> tuple[ValueNode, Errors]:
    """Move the ``dynamic_axes`` of torch.onnx.export into named sizes of shapes.

    A list of axes, ``{input0: [0]}``, gets the names torch would make: input0_dynamic_axes_1, ….
    """
    axes = tree.get("dynamic_axes")
    if axes is None:
        return tree, []
    tree = tree.without("dynamic_axes")
    if not isinstance(axes.value, dict):
        return tree, [axes.error(expected("a map of tensor names", axes.value))]
    errors: Errors = []
    for tensor, named in axes.items():
        parts = {part: node for part in ("inputs", "outputs") if (node := tree.get(part))}
        section = next((part for part, node in parts.items() if node.get(tensor)), None)
        if section is None:
            tensors = [name for part in parts.values() for name, _ in part.items()]
            text, hint = f'unknown input or output "{tensor}"', suggest(tensor, tensors)
            errors.append(named.error(text, hint, of_key=True))
            continue
        member = parts[section].value[tensor]
        shape = member.get("shape")
        if shape is None or not isinstance(shape.value, list):
            continue  # an output gets its axes from the graph; an input without shape is an error
        sizes = list(shape.value)
        for axis, name in _named_axes(tensor, named):
            if problem := _name_axis(sizes, axis, name):
                text = f'axis {axis} of "{tensor}" ({len(sizes)} dimensions): {problem}'
                errors.append(name.error(text, "write {AXIS: NAME} or [AXIS, …], from 0"))
        member = member.with_member("shape", ValueNode(sizes, shape.origin))
        tree = tree.with_member(section, parts[section].with_member(tensor, member))
    return tree, errors


def _named_axes(tensor: str, named: ValueNode) -> list[tuple[Any, ValueNode]]:
    """List axes with their names; one without an axis for anything but a map or list."""
    if isinstance(named.value, dict):
        return list(named.value.items())
    if not isinstance(named.value, list):
        return [(named.value, named)]
    stem = re.sub(r"\W", "_", tensor)
    return [
        (node.value, ValueNode(f"{stem}_dynamic_axes_{number}", node.origin))
        for number, node in enumerate(named.value, start=1)
    ]


def _name_axis(sizes: list[ValueNode], axis: Any, name: ValueNode) -> str:
    """Name an axis; return the problem, or ""."""
    if not re.fullmatch(r"-?[0-9]{1,9}", str(axis)) or isinstance(axis, bool):
        return expected("an integer", axis)
    if not isinstance(name.value, str):
        return expected("the name of a dimension", name.value)
    index = int(axis)
    if not -len(sizes) <= index < len(sizes):
        return "it is outside of the shape"
    is_generated = "_dynamic_axes_" in name.value
    if isinstance(sizes[index].value, str) and not is_generated:
        other = sizes[index].value
        return "" if other == name.value else f"it is {name.value} here, and {other} in the shape"
    sizes[index] = sizes[index] if isinstance(sizes[index].value, str) else name
    return ""
