"""The ``dynamic_axes`` of torch.onnx.export, translated into named sizes of shapes."""

from __future__ import annotations

import re
from typing import Any

from buildsys.manifest.problem import Problem, expected, show_value, suggest
from buildsys.manifest.value_tree import ValueNode

_INTEGER = re.compile(r"-?[0-9]{1,9}")


def name_dynamic_axes(tree: ValueNode) -> tuple[ValueNode, list[Problem]]:
    """Move ``dynamic_axes`` into the shapes of inputs and outputs.

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
