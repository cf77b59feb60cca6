"""The classical ``dynamic_axes`` of torch.onnx.export, turned into the names in ``shape`` that mean the same."""

from __future__ import annotations

import re
from typing import Any

from buildsys.manifest.problem import Problem, show_value, suggest
from buildsys.manifest.value_tree import Node

_INTEGER = re.compile(r"-?[0-9]{1,9}")


def name_dynamic_axes(tree: Node) -> tuple[Node, list[Problem]]:
    """Return the tree with its ``dynamic_axes`` moved into the shapes of inputs and outputs.

    A bare list of axes, ``{input0: [0]}``, gets the names that torch would make: input0_dynamic_axes_1, ….
    """
    axes = tree.get("dynamic_axes")
    if axes is None:
        return tree, []
    tree = tree.without("dynamic_axes")
    if not isinstance(axes.value, dict):
        return tree, [
            Problem(axes.origin, f"found {show_value(axes.value)}; a map of tensor names is wanted")
        ]
    problems: list[Problem] = []
    for tensor, named in axes.items():
        section = next(
            (part for part in ("inputs", "outputs") if _member(tree, part, tensor)), None
        )
        if section is None:
            parts = [part for part in (tree.get("inputs"), tree.get("outputs")) if part is not None]
            known = [name for part in parts for name, _ in part.items()]
            text = f"no input or output is named {tensor}"
            problems.append(Problem(named.origin, text, suggest(tensor, known), of_key=True))
        else:
            tree = _name_axes(tree, section, tensor, named, problems)
    return tree, problems


def _member(tree: Node, section: str, tensor: str) -> Node | None:
    part = tree.get(section)
    return part.get(tensor) if part is not None else None


def _name_axes(tree: Node, section: str, tensor: str, named: Node, problems: list[Problem]) -> Node:
    part, member = tree.get(section), _member(tree, section, tensor)
    assert part is not None and member is not None
    pairs = _pairs(tensor, named, problems)
    shape = member.get("shape")
    if shape is None or not isinstance(shape.value, list):
        return tree  # an output without a shape takes its axes from the graph; an input without one is an error anyway
    sizes = list(shape.value)
    for axis, name in pairs:
        if not -len(sizes) <= axis < len(sizes):
            text = (
                f"axis {axis} is outside the shape of {tensor}, which has {len(sizes)} dimensions"
            )
            problems.append(Problem(name.origin, text, of_key=isinstance(named.value, dict)))
        elif isinstance(sizes[axis].value, str) and isinstance(named.value, list):
            continue  # dynamic already, under a better name
        elif isinstance(sizes[axis].value, str) and sizes[axis].value != name.value:
            text = (
                f"axis {axis} of {tensor} is {name.value} here and {sizes[axis].value} in its shape"
            )
            problems.append(Problem(name.origin, text))
        else:
            sizes[axis] = name
    member = member.with_member("shape", Node(sizes, shape.origin))
    return tree.with_member(section, part.with_member(tensor, member))


def _pairs(tensor: str, named: Node, problems: list[Problem]) -> list[tuple[int, Node]]:
    """Return (axis, node of its name) for the map form and the list form."""
    if isinstance(named.value, dict):
        entries: list[tuple[Any, Node]] = list(named.value.items())
    elif isinstance(named.value, list):
        stem = re.sub(r"\W", "_", tensor)
        entries = [
            (node.value, Node(f"{stem}_dynamic_axes_{number}", node.origin))
            for number, node in enumerate(named.value, start=1)
        ]
    else:
        text = f"found {show_value(named.value)}; a map such as {{0: batch}} or a list of axes is wanted"
        problems.append(Problem(named.origin, text))
        return []
    pairs = []
    for axis, node in entries:
        if isinstance(axis, bool) or not _INTEGER.fullmatch(str(axis)):
            problems.append(
                Problem(node.origin, f"the axis {show_value(axis)} is not a whole number")
            )
        elif not isinstance(node.value, str):
            problems.append(
                Problem(
                    node.origin,
                    f"found {show_value(node.value)}; the name of a dimension is wanted",
                )
            )
        else:
            pairs.append((int(axis), node))
    return pairs
