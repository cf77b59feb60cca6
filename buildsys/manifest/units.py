"""Durations (``3s``), sizes (``8GiB``) and percentages (``5%``) as people write them."""

from __future__ import annotations

import json
import math
import re

_DURATION_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_PERCENTAGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_duration(value: object) -> float:
    """Return seconds for ``3s``, ``200ms``, ``2min`` or a number of seconds.

    Raises: ValueError: not a duration.
    """
    return _parse(value, _DURATION_S, "a duration such as 3s, 200ms or 2min")


def parse_size(value: object) -> int:
    """Return bytes for ``8GiB``, ``512MiB`` or a number of bytes.

    Raises: ValueError: not a size.
    """
    return round(_parse(value, _SIZE_BYTES, "a size such as 8GiB or 512MiB"))


def parse_percentage(value: object) -> float:
    """Return the share for ``5%`` or a number up to 1.

    Raises: ValueError: not a percentage.
    """
    if isinstance(value, str) and (match := _PERCENTAGE.fullmatch(value)):
        return float(match[1]) / 100
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    found = json.dumps(value, default=str, ensure_ascii=False)
    raise ValueError(f"expected a percentage such as 5%, found {found}")


def _parse(value: object, units: dict[str, float] | dict[str, int], what: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match and match[2] in units:
            return float(match[1]) * units[match[2]]
    raise ValueError(f"expected {what}, found {json.dumps(value, default=str, ensure_ascii=False)}")
