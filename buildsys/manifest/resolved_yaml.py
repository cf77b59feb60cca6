"""Resolved manifests as annotated YAML, for ``buildsys resolve``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.manifest.graph_sections import GRAPH_SECTIONS, NETWORK_SECTIONS
from buildsys.manifest.project import ResolvedModel

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*( [A-Za-z0-9_./+-]+)*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")
_RESERVED = re.compile(r"(?i)null|true|false|yes|no|on|off|y|n")  # most for YAML 1.1 readers
# limits of gates are refused without their units
_UNITS = {"latency": "s", "build_time": "s", "size": "B", "memory": "B"}
Line = tuple[str, str]  # text, comment


def resolved_text(model: ResolvedModel) -> str:
    """Return a resolved manifest as YAML with the origin of each value.

    The text is a manifest itself: in a project without defaults it resolves to the same data.
    """
    source = model.data["source"] or {}
    without: tuple[str, ...] = ("export",) if "onnx" in source else ()
    if "tensorrt" in source or not source:
        without = GRAPH_SECTIONS if source else NETWORK_SECTIONS
    unused = ("toolchains", *without)
    sections = {name: value for name, value in model.data.items() if name not in unused}
    lines = list(_lines(sections, (), 0, model.origins))
    width = min(max((len(line) for line, _ in lines), default=0), 60)
    shown = [f"# {model.name}, from {model.file}"]
    shown += [f"{line:<{width}}  # {comment}" if comment else line for line, comment in lines]
    # toolchains belong to the project, not to the manifest
    for name, toolchain in model.data.get("toolchains", {}).items():
        origin = model.origins.get(f"toolchains.{name}.python", "default")
        variables = "".join(f" {key}={value}" for key, value in toolchain["env"].items())
        shown.append(f"# toolchain {name}: {toolchain['python']}{variables} ({origin})")
    return "\n".join(shown) + "\n"


def _lines(
    value: Any, path: tuple[str, ...], depth: int, origins: Mapping[str, str]
) -> Iterator[Line]:
    """Yield the lines of a map or list."""
    indent = "  " * depth
    if isinstance(value, Mapping):
        for name, member in value.items():
            plain = _KEY.fullmatch(name) and not _RESERVED.fullmatch(name)
            head = f"{indent}{name if plain else json.dumps(name)}:"
            member_path = (*path, name)
            if _is_leaf(member):
                member = _with_unit(member_path, member)
                yield f"{head} {_flow(member)}", origins.get(".".join(member_path), "default")
            else:
                yield head, ""
                yield from _lines(member, member_path, depth + 1, origins)
        return
    for index, member in enumerate(value):
        member_path = (*path, str(index))
        if _is_leaf(member):
            yield f"{indent}- {_flow(member)}", origins.get(".".join(member_path), "default")
            continue
        for number, (line, comment) in enumerate(_lines(member, member_path, depth + 1, origins)):
            first = f"{indent}- {line[len(indent) + 2 :]}"
            yield (line if number else first), comment


def _with_unit(path: tuple[str, ...], value: Any) -> Any:
    """Return a limit of a gate with its unit, another value as it is."""
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
    """Return a value on one line."""
    if isinstance(value, list):
        return f"[{', '.join(_flow(member) for member in value)}]"
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _RESERVED.fullmatch(value):
        return value
    return json.dumps(value)
