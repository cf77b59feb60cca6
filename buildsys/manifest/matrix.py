"""Expansion of ``matrix:`` into one named model per combination."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from buildsys.manifest.layers import merge
from buildsys.manifest.problem import Problem, expected, show_value
from buildsys.manifest.value_tree import FieldPath, ValueNode, leaves, nearest, plain, replace_at

MAX_MODELS = 1000

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]+")
_FIXED = ("model", "extends", "matrix")

Axis = tuple[FieldPath, list[ValueNode]]
Choice = tuple[FieldPath, ValueNode]


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
        choices = [(path, value) for (path, _), value in zip(axes, values, strict=True)]
        variant = tree
        for path, value in choices:
            existing, missing = nearest(variant, _indexed(variant, path))
            new = value if missing else merge(existing, value, path)
            try:
                variant = replace_at(variant, path, new)
            except LookupError as error:
                text = f"unknown field {'.'.join(map(str, path))}"
                problems.append(Problem(value.origin, text, f"{error.args[0]} does not exist"))
        variant, found = _rename(variant, choices)
        problems += found
        trees.append(variant)
    names = [node.value for variant in trees if (node := variant.get("model"))]
    names = [name for name in names if isinstance(name, str)]
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
        if path[0] in _FIXED:
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


def _rename(tree: ValueNode, choices: Sequence[Choice]) -> tuple[ValueNode, list[Problem]]:
    model = tree.get("model")
    if model is None or not isinstance(model.value, str):
        return tree, []
    problems = []

    def fill(match: re.Match[str]) -> str:
        node, missing = nearest(tree, _indexed(tree, tuple(match[1].split("."))))
        if missing:
            text = f"the name uses {{{match[1]}}}, which is not set"
            problems.append(Problem(model.origin, text, "set the field, or use another one"))
        return "" if missing else _label(node)

    name: str = _PLACEHOLDER.sub(fill, model.value)
    if name == model.value:
        name = "-".join([name, *(_label(value) for _, value in choices)])
    return tree.with_member("model", ValueNode(name, model.origin)), problems


def _label(node: ValueNode) -> str:
    """Return a value as a part of a model's name."""
    words = [_word(leaf.value) for _, leaf in leaves(node)]
    return _NOT_IN_NAMES.sub("-", "-".join(words))


def _word(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(_word(plain(member)) for member in value) or "empty"
    if value is None or isinstance(value, (bool, dict)):
        return show_value(value).rpartition(" ")[2] if value != {} else "empty"
    return str(value) or "empty"
