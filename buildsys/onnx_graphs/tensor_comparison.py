"""Comparison of one output with its reference.

Randomly initialized networks give outputs as small as 1e-14, so an absolute difference alone says
nothing: errors are relative to the largest magnitude of the reference, together with the cosine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from buildsys.onnx_graphs.result_types import OutputComparison, Value, WorstElement
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of

Tolerance = Mapping[str, float | None]


@dataclass(frozen=True)
class Comparison:
    """Errors of an output against its reference, and the verdict.

    ``relative`` is max |a - b| over max |b|: 0 if both are zero, infinite if only b is. ``cosine``
    is None for strings, ``top1`` (share of rows with equal arg-max on the last axis) without rows.
    ``worst_*`` is the element with the largest difference. ``problem`` is empty if ``passed``.
    """

    max_abs: float = math.inf
    relative: float = math.inf
    cosine: float | None = None
    top1: float | None = None
    passed: bool = False
    worst_index: tuple[int, ...] | None = None
    worst_actual: Value = None
    worst_expected: Value = None
    non_finite: int = 0  # elements that are NaN, or infinite on one side only
    problem: str = ""
    broken: tuple[str, ...] = field(default=(), repr=False)  # exceeded limits with their values

    def figures(self) -> OutputComparison:
        """Return the numbers for a result file; infinity and NaN become None."""
        max_abs, relative, cosine, top1 = (
            value if value is not None and math.isfinite(value) else None
            for value in (self.max_abs, self.relative, self.cosine, self.top1)
        )
        return {
            "max_abs": max_abs,
            "relative": relative,
            "cosine": cosine,
            "top1": top1,
            "passed": self.passed,
        }

    def failure(self) -> WorstElement:
        """Return the worst element for a result file."""
        actual, expected = (
            str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for value in (self.worst_actual, self.worst_expected)
        )
        return {
            "index": None if self.worst_index is None else list(self.worst_index),
            "actual": actual,
            "expected": expected,
            "problem": self.problem,
        }

    def sentence(self, actual: str = "the output", expected: str = "the reference") -> str:
        """Return the problem as a clause with the names of both sides."""
        if self.worst_index is None:
            return self.problem
        where = f"at {list(self.worst_index)} {actual} has {_show(self.worst_actual)}"
        return f"{where} and {expected} {_show(self.worst_expected)} ({', '.join(self.broken)})"


def compare(actual: Tensor | Array, expected: Tensor | Array, tolerance: Tolerance) -> Comparison:
    """Compare an output with its reference in float64, or exactly.

    Integers, booleans and strings must be equal. ``tolerance`` has ``rtol``, ``cosine`` and
    optionally ``atol`` and ``top1``; all of them must hold. A NaN on either side, or an infinity
    on one side only, always fails.
    """
    ours, theirs = (v if isinstance(v, Tensor) else tensor_of(v) for v in (actual, expected))
    for what, one, other in (
        ("type", ours.dtype, theirs.dtype),
        ("shape", list(ours.shape), list(theirs.shape)),
    ):
        if one != other:
            return Comparison(problem=f"has {what} {one} instead of {other}")
    if ours.array.size == 0:
        return Comparison(0.0, 0.0, 1.0, None, True)
    a, b = ours.values(), theirs.values()
    if ours.dtype == "string":
        different = np.asarray(a != b)
        if not different.any():
            return Comparison(0.0, 0.0, None, None, True)
        return _failed(different, a, b, (f"{int(different.sum())} of {a.size} strings differ",))
    if a.dtype.kind in "biu":
        different = np.asarray(a != b)
        x, y = a.astype(np.float64), b.astype(np.float64)
        equal = _errors(x, y)
        if not different.any():
            return equal
        # unequal 64-bit integers can be equal as float64: the worst is among the different ones
        distance = np.where(different, np.abs(x - y), -1.0)
        problem = f"{int(different.sum())} of {a.size} elements differ, none may"
        return _failed(distance, a, b, (problem,), equal)
    with np.errstate(over="ignore"):  # an overflowing difference is infinite and exceeds any limit
        return _compare_floats(a, b, tolerance)


def _compare_floats(a: Array, b: Array, tolerance: Tolerance) -> Comparison:
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    same_infinity = ~np.isfinite(x) & (x == y)
    unusable = ~(np.isfinite(x) & np.isfinite(y)) & ~same_infinity
    if unusable.any():
        count = int(unusable.sum())
        problem = f"{count} of {unusable.size} elements are NaN or infinite"
        if np.isnan(y).any() and not np.isfinite(y[unusable]).any():
            problem += " in the reference itself"
        return _failed(unusable, a, b, (problem,), non_finite=count)
    x, y = np.where(same_infinity, 0, x), np.where(same_infinity, 0, y)
    errors = _errors(x, y)
    broken = []
    for title, value, limit in (
        ("relative error", errors.relative, tolerance.get("rtol")),
        ("absolute error", errors.max_abs, tolerance.get("atol")),
    ):
        if limit is not None and not value <= limit:  # so that a NaN counts as broken
            broken.append(f"{title} {value:.1e}, allowed {limit:g}")
    for title, share, least in (
        ("cosine", errors.cosine, tolerance.get("cosine")),
        ("top-1 agreement", errors.top1, tolerance.get("top1")),
    ):
        if share is not None and least is not None and not share >= least:
            broken.append(f"{title} {share:.6g}, at least {least:g}")
    return _failed(np.abs(x - y), a, b, tuple(broken), errors) if broken else errors


def _errors(x: Array, y: Array) -> Comparison:
    """Return a passed comparison of finite values."""
    scale = float(np.abs(y).max())
    if scale == 0.0:
        max_abs = float(np.abs(x).max())
        relative = 0.0 if max_abs == 0.0 else math.inf
    else:  # both divided first: no overflow near the end of float64
        max_abs = float(np.abs(x - y).max())
        relative = float(np.abs(x / scale - y / scale).max())
    top1 = None
    if x.ndim and x.shape[-1] >= 2 and x.dtype.kind != "c":
        rows = y.reshape(-1, y.shape[-1])
        chosen = rows[np.arange(len(rows)), x.reshape(rows.shape).argmax(axis=1)]
        top1 = float((chosen == rows.max(axis=1)).mean())  # ties agree
    return Comparison(max_abs, relative, _cosine(x, y), top1, passed=True)


def _cosine(x: Array, y: Array) -> float:
    longest_x, longest_y = float(np.abs(x).max()), float(np.abs(y).max())
    if longest_x == 0.0 or longest_y == 0.0:
        return 1.0 if longest_x == longest_y else 0.0
    # scaled, as squares of 1e-200 would vanish
    x, y = (x / longest_x).reshape(-1), (y / longest_y).reshape(-1)
    cosine = float(np.real(np.vdot(x, y)) / (np.linalg.norm(x) * np.linalg.norm(y)))
    return min(1.0, max(-1.0, cosine))


def _failed(
    distance: Array,
    a: Array,
    b: Array,
    broken: tuple[str, ...],
    errors: Comparison | None = None,
    non_finite: int = 0,
) -> Comparison:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(distance)), distance.shape))
    here, there = (
        str(value) if isinstance(value := side.item(index), complex) else value for side in (a, b)
    )
    return replace(
        errors or Comparison(),
        passed=False,
        worst_index=index,
        worst_actual=here,
        worst_expected=there,
        non_finite=non_finite,
        problem=f"at {list(index)} it is {_show(here)} instead of {_show(there)} "
        f"({', '.join(broken)})",
        broken=broken,
    )


def _show(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
