"""Which values an input of a given dtype can be filled with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

INTEGER_RANGES = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (4, 8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (4, 8, 16, 32, 64)},
}
IMAGE_DTYPES = ("float32", "float16", "bfloat16", "uint8")
_DEFAULT_INTEGERS = 10
_UNUSED = {  # fields that a kind of random data ignores, with their defaults
    "normal": {"low": 0, "high": 1},
    "uniform": {"mean": 0, "std": 1},
    "integers": {"mean": 0, "std": 1},
}

Found = tuple[str, str, str]  # field of `data` ("" for all of it), problem, hint


def default_high(dtype: str) -> float:
    """Return the exclusive upper bound of random integers for which a manifest gives none."""
    if dtype == "bool":
        return 2.0
    return float(min(_DEFAULT_INTEGERS, INTEGER_RANGES.get(dtype, (0, math.inf))[1] + 1))


def data_problem(dtype: object, data: object) -> Found | None:
    """Return why ``data`` cannot make values of ``dtype``, or None; what is malformed otherwise passes."""
    if not isinstance(dtype, str):
        return None
    if data is None:
        text = "random values of dtype string cannot be made"
        return ("", text, "give data: constant, npz or python") if dtype == "string" else None
    if not isinstance(data, Mapping):
        return None
    if "random" in data:
        return _random_problem(dtype, data)
    if "images" in data and dtype not in IMAGE_DTYPES:
        return (
            "images",
            f"images cannot be values of dtype {dtype}",
            f"they can be {', '.join(IMAGE_DTYPES)}",
        )
    return _constant_problem(dtype, data["constant"]) if "constant" in data else None


def _random_problem(dtype: str, data: Mapping[str, Any]) -> Found | None:
    kind = data["random"]
    if dtype == "string":
        return (
            "random",
            "random values of dtype string cannot be made",
            "use constant, npz or python",
        )
    if (dtype in INTEGER_RANGES or dtype == "bool") and kind in ("normal", "uniform"):
        return (
            "random",
            f"random {kind} values cannot be made for dtype {dtype}",
            "use random: integers",
        )
    for field, usual in _UNUSED.get(str(kind), {}).items():
        if data.get(field, usual) != usual:
            return field, f"ignored with random: {kind}", "remove it"
    if kind in ("uniform", "integers"):
        return _bounds_problem(dtype, data, whole=kind == "integers")
    return None


def _bounds_problem(dtype: str, data: Mapping[str, Any], *, whole: bool) -> Found | None:
    low, high = data.get("low", 0), data.get("high", default_high(dtype) if whole else 1)
    if not (_is_number(low) and _is_number(high)):
        return None
    if not low < high:
        return "high" if "high" in data else "low", f"high {high:g} is not above low {low:g}", ""
    if whole and (low % 1 or high % 1):
        return "low" if low % 1 else "high", "whole numbers are wanted with random: integers", ""
    least, most = (0, 1) if dtype == "bool" else INTEGER_RANGES.get(dtype, (-math.inf, math.inf))
    if whole and (low < least or high > most + 1):
        field = "low" if low < least else "high"
        return (
            field,
            f"{data[field]:g} is outside the range of {dtype} ({least} to {most})",
            "high is exclusive",
        )
    return None


def _constant_problem(dtype: str, value: object) -> Found | None:
    if isinstance(value, str) != (dtype == "string"):
        shown = "text" if isinstance(value, str) else "a number or a boolean"
        return "constant", f"the constant is {shown}, and the input has dtype {dtype}", ""
    if dtype == "bool" and value not in (0, 1):
        return "constant", "a bool input takes true or false", ""
    if dtype in INTEGER_RANGES and isinstance(value, (int, float)):
        least, most = INTEGER_RANGES[dtype]
        if not least <= value <= most or value % 1:
            return "constant", f"{value} is not a value of dtype {dtype} ({least} to {most})", ""
    return None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
