"""Ranges of dtypes, and checks of input data against them."""

import math
from collections.abc import Mapping
from typing import Any

INTEGER_RANGES = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (4, 8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (4, 8, 16, 32, 64)},
}
_RANGES = {**INTEGER_RANGES, "bool": (0, 1)}
IMAGE_DTYPES = ("float32", "float16", "bfloat16", "uint8")
_DEFAULT_INTEGERS = 10
# names of golden cases with special values: of all numbers, of floats, and of integers
VALUE_CASES = (
    "extremes-1", "extremes-2",
    "zeros", "ones", "small", "large", "huge", "nan", "inf",
    "zero-integers", "one-integers", "negative-integers", "hundreds", "wide-integers", "last-rows",
)  # fmt: skip
DataProblem = tuple[tuple[str, ...], str, str]  # path below the tensor, problem, hint


def default_high(dtype: str) -> float:
    """Return the default exclusive upper bound of random integers."""
    return float(min(_DEFAULT_INTEGERS, _RANGES.get(dtype, (0, math.inf))[1] + 1))


def allowed_range(dtype: str, data: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """Return the least and the largest value of an input; None: its data are fixed."""
    if not data or data.get("random") == "normal":
        return _RANGES.get(dtype, (-math.inf, math.inf))
    if "random" not in data:
        return None
    return data["low"], data["high"] - (data["random"] == "integers")


def data_problem(dtype: str, data: Mapping[str, Any] | None) -> DataProblem | None:
    """Find what makes data unsuitable for a dtype."""
    if dtype == "string" and (data is None or "random" in data):
        path = ("data", "random") if data else ()
        return path, "cannot draw random values of dtype string", "use constant, npz or python"
    if data is None:
        return None
    if "images" in data and dtype not in IMAGE_DTYPES:
        text = f"cannot convert images to dtype {dtype}"
        return ("data", "images"), text, f"supported: {', '.join(IMAGE_DTYPES)}"
    least, most = _RANGES.get(dtype, (-math.inf, math.inf))
    if kind := data.get("random"):
        if dtype in _RANGES and kind != "integers":
            text = f"cannot draw {kind} values of dtype {dtype}"
            return ("data", "random"), text, "use random: integers"
        low = data.get("low", 0)
        high = data.get("high", default_high(dtype) if kind == "integers" else 1)
        outside = low % 1 or high % 1 or low < least or high > most + 1
        if kind != "normal" and (not low < high or (kind == "integers" and outside)):
            field = "high" if "high" in data else "low"
            text = f"cannot draw random {dtype} from {low:g} to {high:g}"
            return ("data", field), text, f"high must be above low; {dtype} has {least} to {most}"
        return None
    value = data.get("constant")
    is_fine = value is None or isinstance(value, str) == (dtype == "string")
    if is_fine and isinstance(value, (bool, int, float)):
        is_fine = least <= value <= most and not (math.isfinite(most) and value % 1)
    if is_fine:
        return None
    text = f"{value} is not a value of dtype {dtype}"
    return ("data", "constant"), text, f"{least} to {most}" if math.isfinite(most) else ""
