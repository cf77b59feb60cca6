"""Parts of an action key for its options."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

_SPECIAL = re.compile(r"([\\.\[\]])")
encode = json.JSONEncoder().encode  # json.dumps evaluates its options again for every value


def flatten_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return dotted names and JSON texts of all leaves, unique per options.

    A list of plain values is one leaf (``[1, 3, 224, 224]``), other lists are numbered
    (``profiles[0].x``). Empty maps and lists are leaves. Dots, brackets and backslashes in names
    are escaped with a backslash.

    Raises: TypeError: a name is not a string, or a value is not JSON.
    """
    leaves: dict[str, str] = {}
    waiting = [(prefix + _escape(name), value) for name, value in options.items()]
    while waiting:
        name, value = waiting.pop()
        if value and isinstance(value, dict):
            waiting += [(f"{name}.{_escape(key)}", item) for key, item in value.items()]
        elif isinstance(value, (list, tuple)) and any(
            isinstance(item, (dict, list, tuple)) for item in value
        ):
            waiting += [(f"{name}[{index}]", item) for index, item in enumerate(value)]
        elif value is None:  # the encoder is ten times slower for single values that are no strings
            leaves[name] = "null"
        else:
            leaves[name] = str(value) if type(value) is int else encode(value)
    return leaves


@cache  # the same few field names occur in every target
def _escape(name: str) -> str:
    return _SPECIAL.sub(r"\\\1", name)
