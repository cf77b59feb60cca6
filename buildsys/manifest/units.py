"""Durations (``3s``), sizes (``8GiB``) and percentages (``5%``) as people write them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

_DURATION_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_MAX_DURATION_S, _MAX_BYTES = 100 * 365.25 * 86400, 2.0**63 - 1024
_INFINITE = 2**1024  # no float
_DURATION, _SIZE = "a duration such as 3s, 200ms or 2min", "a size such as 8GiB or 512MiB"
_SHOWN = 60
_DECIMALS = 12  # 26ms is 0.026 s, and not 0.026000000000000002
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_PERCENTAGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_duration(value: object) -> float:
    """Return seconds for ``3s``, ``200ms``, ``2min`` or a number of seconds.

    Raises: ValueError: not a duration.
    """
    what = _DURATION
    seconds = _parse(value, _DURATION_S, what)
    if seconds > _MAX_DURATION_S:  # Python cannot wait longer than 292 years
        raise ValueError(f"expected {what}, of at most 100 years, found {_shown(value)}")
    return seconds


def parse_size(value: object) -> int:
    """Return bytes for ``8GiB``, ``512MiB`` or a number of bytes.

    Raises: ValueError: not a size.
    """
    what = _SIZE
    size = _parse(value, _SIZE_BYTES, what)
    if size > _MAX_BYTES:
        raise ValueError(f"expected {what}, below 8 EiB, found {_shown(value)}")
    return round(size)


def parse_duration_limit(value: object) -> float:
    """Return seconds for a duration with its unit.

    Raises: ValueError: not a duration, or a plain number.
    """
    _check_unit(value, _DURATION, _DURATION_S)
    return parse_duration(value)


def parse_size_limit(value: object) -> int:
    """Return bytes for a size with its unit.

    Raises: ValueError: not a size, or a plain number.
    """
    _check_unit(value, _SIZE, _SIZE_BYTES)
    return parse_size(value)


def number_or_text(text: str) -> float | str:
    """Return a number on the command line as such, other text as it is."""
    return float(text) if _NUMBER.fullmatch(text) else text


def parse_percentage(value: object) -> float:
    """Return the share for ``5%`` or a number up to 1.

    Raises: ValueError: not a percentage.
    """
    if isinstance(value, str) and (match := _PERCENTAGE.fullmatch(value)):
        return round(float(match[1]) / 100, _DECIMALS)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ValueError(f"expected a percentage such as 5%, found {_shown(value)}")


def _parse(value: object, units: dict[str, float] | dict[str, int], what: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _INFINITE:
        return float(value)
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match and match[2] in units:
            return round(float(match[1]) * units[match[2]], _DECIMALS)
    raise ValueError(f"expected {what}, found {_shown(value)}")


def _check_unit(value: object, what: str, units: Iterable[str]) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and _NUMBER.fullmatch(value.strip())):
        raise ValueError(
            f"expected {what}, with its unit ({', '.join(units)}), found {_shown(value)}"
        )


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
