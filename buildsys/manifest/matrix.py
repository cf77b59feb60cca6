"""``matrix:`` — one model per combination of values, each with a name of its own."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

from buildsys.manifest.problem import Problem, show_value
from buildsys.manifest.value_tree import Key, Node, leaves, merge, nearest, plain, replace_at

MAX_MODELS = 1000

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]+")
_OUTSIDE = ("model", "extends", "matrix")

Axis = tuple[Key, list[Node]]


def expand_matrix(tree: Node) -> tuple[list[Node], list[Problem]]:
    """Return one tree per combination; without a matrix, the tree itself.

    The last axis varies fastest. A name with placeholders such as ``net-op{export.opset}`` gets the values
    put in, any other name gets ``-VALUE`` appended per axis.
    """
    matrix = tree.get("matrix")
    if matrix is None:
        named, problems = _rename(tree, [])
        return [named], problems
    tree = tree.without("matrix")
    axes, problems = _axes(matrix)
    if problems:
        return [tree], problems
    combinations = list(itertools.product(*(values for _, values in axes)))
    trees = []
    for values in combinations:
        named, found = _combine(
            tree, [(key, value) for (key, _), value in zip(axes, values, strict=True)]
        )
        problems += found
        trees.append(named)
    return trees, problems or _same_names(matrix, trees)


def _axes(matrix: Node) -> tuple[list[Axis], list[Problem]]:
    if not isinstance(matrix.value, dict):
        text = f"found {show_value(matrix.value)}; a map of field paths to lists is wanted"
        return [], [Problem(matrix.origin, text)]
    axes: list[Axis] = []
    problems = []
    for path, values in matrix.items():
        key: Key = tuple(path.split("."))
        if key[0] in _OUTSIDE:
            problems.append(Problem(values.origin, f"a matrix cannot vary {key[0]}", of_key=True))
        elif not isinstance(values.value, list) or not values.value:
            problems.append(
                Problem(
                    values.origin, f"found {show_value(values.value)}; a list of values is wanted"
                )
            )
        else:
            axes.append((key, values.value))
    count = math.prod(len(values) for _, values in axes)
    if count > MAX_MODELS:
        problems.append(
            Problem(matrix.origin, f"the matrix has {count} combinations, more than {MAX_MODELS}")
        )
    return axes, problems


def _combine(tree: Node, values: list[tuple[Key, Node]]) -> tuple[Node, list[Problem]]:
    problems = []
    for key, value in values:
        existing, missing = nearest(tree, _indexed(tree, key))
        try:
            tree = replace_at(tree, key, value if missing else merge(existing, value, key))
        except LookupError as error:
            text = f"no field {'.'.join(map(str, key))} to vary"
            problems.append(Problem(value.origin, text, f"{error.args[0]} is missing"))
    named, found = _rename(tree, values)
    return named, problems + found


def _indexed(tree: Node, key: Key) -> Key:
    """Return ``key`` with digits as list indices wherever the tree has a list."""
    indexed: list[str | int] = []
    for step in key:
        node, missing = nearest(tree, tuple(indexed))
        in_list = not missing and isinstance(node.value, list) and str(step).isdecimal()
        indexed.append(int(step) if in_list else step)
    return tuple(indexed)


def _rename(tree: Node, values: list[tuple[Key, Node]]) -> tuple[Node, list[Problem]]:
    model = tree.get("model")
    if model is None or not isinstance(model.value, str):
        return tree, []
    problems = []

    def fill(match: re.Match[str]) -> str:
        node, missing = nearest(tree, _indexed(tree, tuple(match[1].split("."))))
        if missing:
            problems.append(
                Problem(model.origin, f"the name uses {{{match[1]}}}, which is not set")
            )
        return "" if missing else _label(node)

    name: str = _PLACEHOLDER.sub(fill, model.value)
    if name == model.value:
        name = "-".join([name, *(_label(value) for _, value in values)])
    return tree.with_member("model", Node(name, model.origin)), problems


def _label(node: Node) -> str:
    """Return a value as a part of a model's name."""
    words = [_word(leaf.value) for _, leaf in leaves(node)]
    return _NOT_IN_NAMES.sub("-", "-".join(words))


def _word(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(_word(plain(member)) for member in value) or "empty"
    if value is None or isinstance(value, (bool, dict)):
        return show_value(value).rpartition(" ")[2] if value != {} else "empty"
    return str(value) or "empty"


def _same_names(matrix: Node, trees: list[Node]) -> list[Problem]:
    names = [
        node.value
        for tree in trees
        if (node := tree.get("model")) is not None and isinstance(node.value, str)
    ]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is None:
        return []
    hint = "put placeholders such as {export.opset} into the name"
    return [Problem(matrix.origin, f"two combinations are both named {show_value(twice)}", hint)]
