"""What `doit resolve` and `doit schema` print and write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.manifest.project import ResolvedModel

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*( [A-Za-z0-9_./+-]+)*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")
_RESERVED = re.compile(
    r"(?i)null|true|false|yes|no|on|off|y|n"
)  # the latter for readers of YAML 1.1
_INDENT = "  "


def resolved_text(model: ResolvedModel) -> str:
    """Return a resolved manifest as YAML, each line with the file and line that set it or ``# default``.

    The text is a manifest itself: in a project without defaults it resolves to the same data.
    """
    unused = ("toolchains", *(("export",) if "onnx" in model.data["source"] else ()))
    sections = {name: value for name, value in model.data.items() if name not in unused}
    lines = list(_lines(sections, (), 0, model.origins))
    width = min(max((len(line) for line, _ in lines), default=0), 60)
    shown = (f"{line:<{width}}  # {comment}" if comment else line for line, comment in lines)
    toolchains = "".join(f"# {line}\n" for line in _toolchain_lines(model))
    return f"# {model.name}, from {model.file}\n" + "\n".join(shown) + "\n" + toolchains


def _toolchain_lines(model: ResolvedModel) -> Iterator[str]:
    """Yield the toolchains of the engines as comments: they are the project's, and no part of a manifest."""
    for name, toolchain in model.data.get("toolchains", {}).items():
        origin = model.origins.get(f"toolchains.{name}.python", "default")
        variables = "".join(f" {key}={value}" for key, value in toolchain["env"].items())
        yield f"toolchain {name}: {toolchain['python']}{variables} ({origin})"


def write_schemas(folder: Path) -> list[Path]:
    """Write the JSON Schemas that editors use, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in schema_texts().items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


def schema_texts() -> dict[str, str]:
    """Return file name -> text of every JSON Schema."""
    from buildsys.manifest.json_schema import editor_schemas

    return {name: json.dumps(schema, indent=2) + "\n" for name, schema in editor_schemas().items()}


def _lines(
    value: Any, key: tuple[str, ...], depth: int, origins: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield (line, comment) for a map or a list of maps."""
    if isinstance(value, Mapping):
        for name, member in value.items():
            head = f"{_INDENT * depth}{_key(name)}:"
            yield from _member(head, member, (*key, name), depth + 1, origins)
        return
    for index, member in enumerate(value):
        yield from _item(member, (*key, str(index)), depth, origins)


def _member(
    head: str, value: Any, key: tuple[str, ...], depth: int, origins: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    if _is_leaf(value):
        yield f"{head} {_flow(value)}", origins.get(".".join(key), "default")
    else:
        yield head, ""
        yield from _lines(value, key, depth, origins)


def _item(
    value: Any, key: tuple[str, ...], depth: int, origins: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield a list's item: its first line starts with the dash, the others are indented as far."""
    if _is_leaf(value):
        yield f"{_INDENT * depth}- {_flow(value)}", origins.get(".".join(key), "default")
        return
    for number, (line, comment) in enumerate(_lines(value, key, depth + 1, origins)):
        first = f"{_INDENT * depth}- {line[len(_INDENT) * (depth + 1) :]}"
        yield (line if number else first), comment


def _is_leaf(value: Any) -> bool:
    if isinstance(value, Mapping):
        return not value
    return not isinstance(value, list) or not any(
        isinstance(member, (Mapping, list)) and member for member in value
    )


def _flow(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_flow(member) for member in value)}]"
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    if isinstance(value, str):
        return (
            value
            if _PLAIN.fullmatch(value) and not _RESERVED.fullmatch(value)
            else json.dumps(value)
        )
    return json.dumps(value)


def _key(name: str) -> str:
    return name if _KEY.fullmatch(name) and not _RESERVED.fullmatch(name) else json.dumps(name)
