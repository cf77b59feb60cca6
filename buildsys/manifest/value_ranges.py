"""Ranges of dtypes, and checks of input data against them."""

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
DataProblem = tuple[tuple[str, ...], str, str]  # path below `data`, problem, hint


def default_high(dtype: str) -> float:
    """Return the default exclusive upper bound of random integers."""
    if dtype == "bool":
        return 2.0
    return float(min(_DEFAULT_INTEGERS, INTEGER_RANGES.get(dtype, (0, math.inf))[1] + 1))


def data_problem(dtype: object, data: object) -> DataProblem | None:
    """Check ``data`` of an input of ``dtype``; return the problem, or None."""
    if not isinstance(dtype, str):
        return None
    if data is None:
        text = "cannot draw random values of dtype string"
        return ((), text, "give data: constant, npz or python") if dtype == "string" else None
    if not isinstance(data, Mapping):
        return None
    if "random" in data:
        return _random_problem(dtype, data)
    if "images" in data and dtype not in IMAGE_DTYPES:
        text = f"cannot convert images to dtype {dtype}"
        return ("images",), text, f"supported: {', '.join(IMAGE_DTYPES)}"
    value = data.get("constant")
    if not isinstance(value, (bool, int, float, str)):
        return None
    least, most = INTEGER_RANGES.get(dtype, (0, 1) if dtype == "bool" else (-math.inf, math.inf))
    is_of_kind = isinstance(value, str) == (dtype == "string")
    if is_of_kind and not isinstance(value, str):
        is_of_kind = least <= value <= most and not (math.isfinite(most) and value % 1)
    if not is_of_kind:
        text = f"{value} is not a value of dtype {dtype}"
        return ("constant",), text, f"{least} to {most}" if math.isfinite(most) else ""
    return None


def _random_problem(dtype: str, data: Mapping[str, Any]) -> DataProblem | None:
    kind = data["random"]
    if dtype == "string":
        text = "cannot draw random values of dtype string"
        return ("random",), text, "use constant, npz or python"
    if (dtype in INTEGER_RANGES or dtype == "bool") and kind in ("normal", "uniform"):
        return ("random",), f"cannot draw {kind} values of dtype {dtype}", "use random: integers"
    if kind not in ("uniform", "integers"):
        return None
    integers = kind == "integers"
    low, high = data.get("low", 0), data.get("high", default_high(dtype) if integers else 1)
    if not (_is_finite(low) and _is_finite(high)):
        return None
    if not low < high:
        field = "high" if "high" in data else "low"
        text = f"high {high:g} is not greater than low {low:g}"
        return (field,), text, "swap or widen the bounds"
    least, most = (0, 1) if dtype == "bool" else INTEGER_RANGES.get(dtype, (-math.inf, math.inf))
    for field, bound, limit in (("low", low, most), ("high", high, most + 1)) if integers else ():
        if bound % 1 or not least <= bound <= limit:
            text = f"{bound:g} is not a bound of random {dtype} ({least} to {most})"
            return (field,), text, "high is exclusive"
    return None


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
