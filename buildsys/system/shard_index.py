"""Indices of weights split into several safetensors files."""

from __future__ import annotations

import json
from pathlib import Path

from buildsys.system.files import read_limited

INDEX_SUFFIX = ".safetensors.index.json"
_MAX_BYTES = 16 << 20  # 200,000 tensors


def read_index(path: Path) -> dict[str, set[str]]:
    """Return the names of the shards with those of their tensors.

    Raises: OSError: the file cannot be read. ValueError: it is not an index.
    """
    try:
        content = json.loads(read_limited(path, _MAX_BYTES))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    table = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not table:
        raise ValueError("it has no weight_map")
    shards: dict[str, set[str]] = {}
    for tensor, name in table.items():
        # another folder would not be in the key, or outside the project
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name:
            raise ValueError(
                f"the weight_map has {name!r:.100}, not a .safetensors file next to it"
            )
        shards.setdefault(name, set()).add(tensor)
    return shards


def shards_of(path: Path) -> list[Path]:
    """Return the shards of an index in order, none of other files."""
    if not path.name.endswith(INDEX_SUFFIX):
        return []
    try:
        return [path.with_name(name) for name in read_index(path)]
    except (OSError, ValueError):
        return []  # the stage reports it
