"""Where the nodes of a graph come from in the user's code: for the words of errors, never for a result.

Standard library only at import: engines are built by interpreters without onnx.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

SCHEMA = "buildsys/origins/1"
_FARTHEST = 64  # nodes that are looked at on the way to one whose origin is known


class Origin(NamedTuple):
    """A source line ``file:line`` and the path of the module that a node lies in; "" where not known."""

    line: str
    module: str

    def __str__(self) -> str:
        """Return ``plugins/models/net.py:12, module layers.0`` with the parts that are known."""
        return ", ".join(
            part for part in (self.line, self.module and f"module {self.module}") if part
        )


def read_origins(file: Path | None) -> dict[str, Origin]:
    """Return tensor -> origin of an export; nothing where the file is missing or not one of these."""
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file else {}
        if found.get("schema") != SCHEMA:
            return {}
        lines, modules = found["lines"], found["modules"]
        return {
            name: Origin(lines[line], modules[module])
            for name, (line, module) in found["tensors"].items()
        }
    except (OSError, ValueError, AttributeError, KeyError, IndexError, TypeError):
        return {}


def origin_of(
    node: Any, producers: Mapping[str, Any], origins: Mapping[str, Origin]
) -> Origin | None:
    """Return the origin of a NodeProto: of its outputs, else of the nearest node before it that has one.

    Simplifiers and converters rename and insert nodes, so a tensor need not be known by its name. ``producers`` has
    the node that makes each tensor of the graph.
    """
    waiting, seen = deque([node]), 0
    while waiting and seen < _FARTHEST:
        current, seen = waiting.popleft(), seen + 1
        for name in current.output:
            if name in origins:
                return origins[name]
        waiting.extend(producers[name] for name in current.input if name in producers)
    return None
