"""Errors of outputs as text. Without imports of libraries: every run loads it."""

from __future__ import annotations

import math


def format_error(value: float) -> str:
    """Return an error with two digits, rounded up: 5.1e-07."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "not finite"
    exponent = math.floor(math.log10(abs(value)))
    return f"{math.ceil(round(abs(value) / 10.0**exponent * 10, 6)) / 10 * 10.0**exponent:.1e}"
