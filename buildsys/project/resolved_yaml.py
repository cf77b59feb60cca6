"""Resolved manifests as annotated YAML, for ``buildsys resolve``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.project.load import ResolvedModel
from buildsys.stages.table import GRAPH_SECTIONS, NETWORK_SECTIONS

# text without quotes; most reserved words are of YAML 1.1
_PLAIN = re.compile(
    r"(?!(?i:null|true|false|yes|no|on|off|y|n)$)[A-Za-z_/][A-Za-z0-9_./+-]*( [A-Za-z0-9_./+-]+)*"
)
# limits of gates are refused without their units
_UNITS = {"latency": "s", "build_time": "s", "size": "B", "memory": "B"}
Line = tuple[str, str]  # text, comment


def resolved_text(model: ResolvedModel) -> str:
    """Write a resolved manifest as YAML with the origin of each value.

    The text is a manifest itself: in a project without defaults it resolves to the same data.
    """
    source = model.data["source"] or {}
    without: tuple[str, ...] = ("export",) if "onnx" in source else ()
    if "tensorrt" in source or not source:
        without = GRAPH_SECTIONS if source else NETWORK_SECTIONS
    unused = ("toolchains", *without)
    sections = {name: value for name, value in model.data.items() if name not in unused}
    lines = list(_lines(sections, (), "", model.origins))
    width = min(max((len(line) for line, _ in lines), default=0), 60)
    text = [f"# {model.name}, from {model.file}"]
    text += [f"{line:<{width}}  # {comment}" if comment else line for line, comment in lines]
    # toolchains belong to the project, not to the manifest
    for name, toolchain in model.data.get("toolchains", {}).items():
        origin = model.origins.get(f"toolchains.{name}.python", "default")
        variables = "".join(f" {key}={value}" for key, value in toolchain["env"].items())
        text.append(f"# toolchain {name}: {toolchain['python']}{variables} ({origin})")
    return "\n".join(text) + "\n"


def _lines(
    value: Any, path: tuple[str, ...], indent: str, origins: Mapping[str, str]
) -> Iterator[Line]:
    """Yield the lines of a map or list."""
    is_map = isinstance(value, Mapping)
    for step, member in value.items() if is_map else enumerate(value):
        below = (*path, str(step))
        head = f"{indent}{_flow(step)}:" if is_map else f"{indent}-"
        if _is_leaf(member):
            comment = origins.get(".".join(below), "default")
            yield f"{head} {_flow(_with_unit(below, member))}", comment
        elif is_map:
            yield head, ""
            yield from _lines(member, below, f"{indent}  ", origins)
        else:  # the first line of an entry follows its hyphen
            for number, (line, comment) in enumerate(_lines(member, below, f"{indent}  ", origins)):
                yield (line if number else f"{head} {line[len(indent) + 2 :]}"), comment


def _with_unit(path: tuple[str, ...], value: Any) -> Any:
    """Add the unit to a limit of a gate."""
    unit = _UNITS.get(path[-2]) if path[-1] == "limit" and "gates" in path else None
    if unit is None or value is None:
        return value
    return f"{value:.12f}".rstrip("0").rstrip(".") + unit


def _is_leaf(value: Any) -> bool:
    if isinstance(value, Mapping):
        return not value
    return not isinstance(value, list) or not any(
        isinstance(member, (Mapping, list)) and member for member in value
    )


def _flow(value: Any) -> str:
    """Write a value on one line."""
    if isinstance(value, list):
        return f"[{', '.join(_flow(member) for member in value)}]"
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value)
