"""Source lines of nodes in the user's code, for error messages only."""

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA = "buildsys/origins/3"
_FARTHEST = 64  # visited nodes in the search for a known line


def read_origins(file: Path | None) -> dict[str, str]:
    """Read tensor -> ``file:line``; {} for an unusable file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file else {}
        return dict(content["tensors"]) if content.get("schema") == SCHEMA else {}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}


def origin_of(node: Any, producers: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """Find the line of a NodeProto or its nearest predecessor, or "".

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
    return ""
