"""Durations (``3s``), sizes (``8GiB``) and percentages (``5%``) as people write them."""

import json
import re
from collections.abc import Mapping

_DURATION_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_MAX_DURATION_S, _MAX_BYTES = 100 * 365.25 * 86400, 2.0**63 - 1024
_INFINITE = 2**1024  # no float
_DURATION, _SIZE = "a duration such as 3s, 200ms or 2min", "a size such as 8GiB or 512MiB"
_LONGEST_VALUE = 60  # characters, in messages
_DECIMALS = 12  # 26ms is 0.026 s, and not 0.026000000000000002
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_PERCENTAGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_duration(value: object, *, needs_unit: bool = False) -> float:
    """Parse ``3s``, ``200ms``, ``2min`` or a number of seconds; return seconds.

    Raises: ValueError: not a duration, or a plain number although it ``needs_unit``.
    """
    seconds = _parse(value, _DURATION_S, _DURATION, needs_unit)
    if seconds > _MAX_DURATION_S:  # Python cannot wait longer than 292 years
        raise _wrong(f"{_DURATION}, of at most 100 years", value)
    return seconds


def parse_size(value: object, *, needs_unit: bool = False) -> int:
    """Parse ``8GiB``, ``512MiB`` or a number of bytes; return bytes.

    Raises: ValueError: not a size, or a plain number although it ``needs_unit``.
    """
    size = _parse(value, _SIZE_BYTES, _SIZE, needs_unit)
    if size > _MAX_BYTES:
        raise _wrong(f"{_SIZE}, below 8 EiB", value)
    return round(size)


def parse_percentage(value: object) -> float:
    """Parse ``5%`` or a number up to 1; return the share. Raises: ValueError: not a percentage."""
    if isinstance(value, str) and (match := _PERCENTAGE.fullmatch(value)):
        return round(float(match[1]) / 100, _DECIMALS)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise _wrong("a percentage such as 5%", value)


def number_or_text(text: str) -> float | str:
    """Convert a number on the command line; leave other text as it is."""
    return float(text) if _NUMBER.fullmatch(text) else text


def _parse(value: object, units: Mapping[str, float], what: str, needs_unit: bool) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if needs_unit and (is_number or (isinstance(value, str) and _NUMBER.fullmatch(value.strip()))):
        raise _wrong(f"{what}, with its unit ({', '.join(units)})", value)
    if isinstance(value, (int, float)) and is_number and 0 <= value < _INFINITE:
        return float(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match and match[2] in units:
        return round(float(match[1]) * units[match[2]], _DECIMALS)
    raise _wrong(what, value)


def _wrong(what: str, value: object) -> ValueError:
    text = json.dumps(value, default=str, ensure_ascii=False)
    text = text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
    return ValueError(f"expected {what}, found {text}")
