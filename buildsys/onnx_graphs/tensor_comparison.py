"""Judge one output against its reference.

Randomly initialised networks give outputs as small as 1e-14, so an absolute difference alone says
nothing: the error is taken relative to the largest magnitude of the reference, together with the cosine
of the angle between the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of

Value = float | int | bool | str | None


@dataclass(frozen=True)
class Comparison:
    """How far an output is from its reference, and whether that is within the tolerance.

    ``relative`` is max |a - b| over max |b| (0 when both are zero, infinite when only b is). ``cosine`` is
    None for strings, ``top1`` (share of rows with equal arg-max on the last axis) where it makes no sense.
    ``worst_*`` say where the two differ most. ``problem`` is empty when ``passed``.
    """

    max_abs: float
    relative: float
    cosine: float | None
    top1: float | None
    passed: bool
    worst_index: tuple[int, ...] | None = None
    worst_actual: Value = None
    worst_expected: Value = None
    non_finite: int = 0  # elements that are NaN, or infinite on one side only
    problem: str = ""
    broken: tuple[str, ...] = field(
        default=(), repr=False
    )  # which limits did not hold, each with its value

    def figures(self) -> dict[str, Any]:
        """Return the numbers for a result file; what JSON cannot write (infinity, NaN) is None."""
        numbers = {
            "max_abs": self.max_abs,
            "relative": self.relative,
            "cosine": self.cosine,
            "top1": self.top1,
        }
        return {**{name: _finite(value) for name, value in numbers.items()}, "passed": self.passed}

    def failure(self) -> dict[str, Any]:
        """Return where and how the comparison failed, for a result file."""
        index = None if self.worst_index is None else list(self.worst_index)
        values = {
            "actual": _json_value(self.worst_actual),
            "expected": _json_value(self.worst_expected),
        }
        return {"index": index, **values, "problem": self.problem}

    def sentence(self, actual: str = "the output", expected: str = "the reference") -> str:
        """Return the problem as a clause that names both sides, e.g. ``ONNX Runtime`` and ``PyTorch``."""
        if self.worst_index is None:
            return self.problem
        where = f"at {list(self.worst_index)} {actual} has {_show(self.worst_actual)}"
        return f"{where} and {expected} {_show(self.worst_expected)} ({', '.join(self.broken)})"


@dataclass(frozen=True)
class _Measured:
    max_abs: float = math.inf
    relative: float = math.inf
    cosine: float | None = None
    top1: float | None = None


def compare(
    actual: Tensor | Array, expected: Tensor | Array, tolerance: Mapping[str, float | None]
) -> Comparison:
    """Compare an output with its reference in float64; integers, booleans and strings must be equal.

    ``tolerance`` has ``rtol``, ``cosine`` and, when wanted, ``atol`` and ``top1``; all that are given must
    hold. A NaN on either side, or an infinity that the other side does not share, always fails.
    """
    ours, theirs = _as_tensor(actual), _as_tensor(expected)
    for what, one, other in (
        ("type", ours.dtype, theirs.dtype),
        ("shape", list(ours.shape), list(theirs.shape)),
    ):
        if one != other:
            return Comparison(
                **asdict(_Measured()), passed=False, problem=f"has {what} {one} instead of {other}"
            )
    if ours.array.size == 0:
        return Comparison(0.0, 0.0, 1.0, None, True)
    a, b = ours.values(), theirs.values()
    if ours.dtype == "string":
        return _compare_strings(a, b)
    if a.dtype.kind in "biu":
        return _compare_exactly(a, b)
    with np.errstate(
        over="ignore"
    ):  # a difference beyond float64 is infinite, which no limit allows
        return _compare_floats(a, b, tolerance)


def _compare_strings(a: Array, b: Array) -> Comparison:
    different = np.asarray(a != b)
    if not different.any():
        return Comparison(0.0, 0.0, None, None, True)
    return _failed(different, a, b, (f"{int(different.sum())} of {a.size} strings differ",))


def _compare_exactly(a: Array, b: Array) -> Comparison:
    different = np.asarray(a != b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    measured = _measure(x, y)
    if not different.any():
        return Comparison(**asdict(measured), passed=True)
    # unequal 64-bit integers can be equal as float64: look for the worst only where they differ
    distance = np.where(different, np.abs(x - y), -1.0)
    return _failed(
        distance, a, b, (f"{int(different.sum())} of {a.size} elements differ, none may",), measured
    )


def _compare_floats(a: Array, b: Array, tolerance: Mapping[str, float | None]) -> Comparison:
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    same_infinity = ~np.isfinite(x) & (x == y)
    unusable = ~(np.isfinite(x) & np.isfinite(y)) & ~same_infinity
    if unusable.any():
        return _failed(
            unusable, a, b, (_non_finite_text(unusable, y),), non_finite=int(unusable.sum())
        )
    x, y = np.where(same_infinity, 0, x), np.where(same_infinity, 0, y)
    measured = _measure(x, y)
    broken = _broken_limits(measured, tolerance)
    if not broken:
        return Comparison(**asdict(measured), passed=True)
    return _failed(np.abs(x - y), a, b, broken, measured)


def _measure(x: Array, y: Array) -> _Measured:
    max_abs, relative = _distance(x, y)
    return _Measured(max_abs, relative, _cosine(x, y), _top1(x, y))


def _broken_limits(measured: _Measured, tolerance: Mapping[str, float | None]) -> tuple[str, ...]:
    broken = []
    for title, value, limit in (
        ("relative error", measured.relative, tolerance.get("rtol")),
        ("absolute error", measured.max_abs, tolerance.get("atol")),
    ):
        if limit is not None and not value <= limit:  # so that a NaN counts as broken
            broken.append(f"{title} {value:.1e}, allowed {limit:g}")
    for title, share, least in (
        ("cosine", measured.cosine, tolerance.get("cosine")),
        ("top-1 agreement", measured.top1, tolerance.get("top1")),
    ):
        if share is not None and least is not None and not share >= least:
            broken.append(f"{title} {share:.6g}, at least {least:g}")
    return tuple(broken)


def _failed(
    distance: Array,
    a: Array,
    b: Array,
    broken: tuple[str, ...],
    measured: _Measured | None = None,
    non_finite: int = 0,
) -> Comparison:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(distance)), distance.shape))
    here, there = _python_value(a[index]), _python_value(b[index])
    return Comparison(
        **asdict(measured or _Measured()),
        passed=False,
        worst_index=index,
        worst_actual=here,
        worst_expected=there,
        non_finite=non_finite,
        problem=f"at {list(index)} it is {_show(here)} instead of {_show(there)} ({', '.join(broken)})",
        broken=broken,
    )


def _distance(x: Array, y: Array) -> tuple[float, float]:
    """Return max |x - y|, and that over max |y|, without overflow for values near the end of float64."""
    scale = float(np.abs(y).max())
    if scale == 0.0:
        max_abs = float(np.abs(x).max())
        return max_abs, 0.0 if max_abs == 0.0 else math.inf
    return float(np.abs(x - y).max()), float(np.abs(x / scale - y / scale).max())


def _cosine(x: Array, y: Array) -> float:
    longest_x, longest_y = float(np.abs(x).max()), float(np.abs(y).max())
    if longest_x == 0.0 or longest_y == 0.0:
        return 1.0 if longest_x == longest_y else 0.0
    x, y = (
        (x / longest_x).reshape(-1),
        (y / longest_y).reshape(-1),
    )  # squares of 1e-200 would vanish
    cosine = float(np.real(np.vdot(x, y)) / (np.linalg.norm(x) * np.linalg.norm(y)))
    return min(1.0, max(-1.0, cosine))


def _top1(x: Array, y: Array) -> float | None:
    """Return the share of rows where x is largest at a place where y is largest too (ties agree)."""
    if x.ndim == 0 or x.shape[-1] < 2 or x.dtype.kind == "c":
        return None
    rows = y.reshape(-1, y.shape[-1])
    chosen = rows[np.arange(len(rows)), x.reshape(rows.shape).argmax(axis=1)]
    return float((chosen == rows.max(axis=1)).mean())


def _non_finite_text(unusable: Array, y: Array) -> str:
    count = int(unusable.sum())
    reference = (
        " in the reference itself"
        if not np.isfinite(y[unusable]).any() and np.isnan(y).any()
        else ""
    )
    return f"{count} of {unusable.size} elements are NaN or infinite{reference}"


def _as_tensor(value: Tensor | Array) -> Tensor:
    return value if isinstance(value, Tensor) else tensor_of(value)


def _python_value(value: Any) -> Value:
    plain = value.item() if hasattr(value, "item") else value
    return str(plain) if isinstance(plain, complex) else plain


def _show(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _json_value(value: Value) -> Value:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
