"""Source lines of nodes in the user's code, for error messages only."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

SCHEMA = "buildsys/origins/2"
_FARTHEST = 64  # visited nodes in the search for a known origin


class Origin(NamedTuple):
    """A source line ``file:line`` and a module path; "" if unknown."""

    line: str
    module: str

    def __str__(self) -> str:
        """Return e.g. ``plugins/models/net.py:12, module layers.0``, without unknown parts."""
        return ", ".join(
            part for part in (self.line, self.module and f"module {self.module}") if part
        )


def read_origins(file: Path | None) -> dict[str, Origin]:
    """Read tensor -> origin; {} for an unusable file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file else {}
        if content.get("schema") != SCHEMA:
            return {}
        return {name: Origin(*origin) for name, origin in content["tensors"].items()}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}


def origin_of(
    node: Any, producers: Mapping[str, Any], origins: Mapping[str, Origin]
) -> Origin | None:
    """Find the origin of a NodeProto or its nearest predecessor.

    Simplifiers and converters rename and insert nodes, so the name of a tensor may be unknown.
    ``producers`` maps the tensors of the graph to their nodes.
    """
    waiting, seen = deque([node]), 0
    while waiting and seen < _FARTHEST:
        current, seen = waiting.popleft(), seen + 1
        for name in current.output:
            if name in origins:
                return origins[name]
        waiting.extend(producers[name] for name in current.input if name in producers)
    return None
