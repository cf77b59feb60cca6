"""Comparison of one output with its reference.

Randomly initialized networks give outputs as small as 1e-14, so an absolute difference alone says
nothing: errors are relative to the largest magnitude of the reference, together with the cosine.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from buildsys.onnx_graphs.result_types import OutputComparison, Value, WorstElement, format_beyond
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of

Tolerance = Mapping[str, float | None]
_LARGE = 8.0  # slices within this factor of the largest one show the rounding errors
_NOISE = 8.0  # times their error: beyond it, an error is none of theirs
_FLOOR = 32 * 2.0**-23  # relative to the largest value: float32 sums that cancel
_LABELS = 32
DIFFER = "elements differ"
_UNSETTLED = 2.0  # standard deviations of a number of other classes
_WORTH_NOTING = 0.1  # relative to a slice's own magnitude


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
    non_finite: int = 0  # elements that are NaN or infinite on one side only
    problem: str = ""  # exceeded limits with their values
    policy: str = ""  # as in the manifest
    has_own_limits: bool = False  # the policy has an rtol, atol or agreement
    note: str = ""  # a permitted difference, or errors that the limits cannot see
    uninformative: str = ""  # why equality proves nothing

    def figures(self) -> OutputComparison:
        """Collect the numbers for a result file; infinity and NaN become None."""
        max_abs, relative, cosine, top1 = (
            value if value is not None and math.isfinite(value) else None
            for value in (self.max_abs, self.relative, self.cosine, self.top1)
        )
        figures: OutputComparison = {
            "max_abs": max_abs,
            "relative": relative,
            "cosine": cosine,
            "top1": top1,
            "passed": None if self.passed and self.uninformative else self.passed,
        }
        texts = {"policy": self.policy, "note": self.note, "uninformative": self.uninformative}
        return cast(
            OutputComparison, figures | {name: text for name, text in texts.items() if text}
        )

    def as_passed(self) -> "Comparison":
        """Keep the figures with the verdict "passed"."""
        worst: dict[str, Any] = dict.fromkeys(("worst_index", "worst_actual", "worst_expected"))
        return replace(self, passed=True, problem="", **worst)

    def as_failed(
        self, a: Array, b: Array, problem: str, index: tuple[int, ...] | None = None
    ) -> "Comparison":
        """Keep the figures as failed at ``index`` of both arrays."""
        failed = replace(self.as_passed(), passed=False, problem=problem)
        if index is None:
            return failed
        actual, expected = (
            str(value) if isinstance(value := side.item(index), complex) else value
            for side in (a, b)
        )
        return replace(failed, worst_index=index, worst_actual=actual, worst_expected=expected)

    def failure(self) -> WorstElement:
        """Convert the worst element for a result file."""
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
        """Write the problem as a clause with the names of both sides."""
        if self.worst_index is None:
            return self.problem
        ours, other = _show_apart(self.worst_actual, self.worst_expected)
        where = f"at {list(self.worst_index)} {actual} has {ours}"
        return f"{where} and {expected} {other} ({self.problem})"


def compare(
    actual: Tensor | Array, expected: Tensor | Array, tolerance: Tolerance, assembled: bool = False
) -> Comparison:
    """Compare an output with its reference in float64, or exactly.

    Integers, booleans and strings must be equal, except in low precision, which limits classes:
    there, a share of the integers may differ, or all of them like floats if they have many values;
    8-bit images always count as floats. ``tolerance`` has
    ``rtol``, ``cosine`` and optionally ``atol`` and ``top1``; all of them must hold, ``rtol`` also
    in slices of small magnitude. A NaN or an infinity on one side only always fails. ``assembled``
    outputs consist of parts computed apart, such as boxes and scores.
    """
    ours, theirs = (v if isinstance(v, Tensor) else tensor_of(v) for v in (actual, expected))
    if ours.dtype != theirs.dtype:
        return Comparison(problem=f"has type {ours.dtype} instead of {theirs.dtype}")
    if ours.shape != theirs.shape:
        return Comparison(problem=f"has shape {list(ours.shape)} instead of {list(theirs.shape)}")
    if ours.array.size == 0:
        return Comparison(0.0, 0.0, 1.0, passed=True, uninformative="it is empty")
    a, b = ours.values(), theirs.values()
    least = tolerance.get("class_agreement")  # of low precision only
    if a.dtype.kind in "fc" or (least is not None and is_image(theirs)):
        # an overflowing difference is infinite and exceeds any limit
        with np.errstate(over="ignore"):
            return _compare_floats(a, b, tolerance, assembled)
    different = np.asarray(a != b)
    count = int(different.sum())
    if ours.dtype == "string":
        if count:
            problem = f"{count} of {a.size} {DIFFER}, none may"
            return _failed(different, a, b, problem, Comparison())
        return Comparison(0.0, 0.0, passed=True)
    x, y = a.astype(np.float64), b.astype(np.float64)
    most = 0 if least is None else max(1, int(likely_most(a.size, least)))
    if count <= most:
        note = f"{count} of {a.size} {DIFFER}" if count else ""
        return replace(_errors(x, y), note=note, uninformative=_zero_reason(b))
    if least is not None and has_many_values(b):
        close = _compare_floats(a, b, tolerance, assembled)
        if close.passed:
            return close
    problem = f"{count} of {a.size} {DIFFER}, {f'at most {most}' if most else 'none'} may"
    # unequal 64-bit integers can be equal as float64: the worst is among the different ones
    return _failed(np.where(different, np.abs(x - y), -1.0), a, b, problem, _errors(x, y))


def is_image(tensor: Tensor) -> bool:
    """Check for 8-bit integers with more values than labels have."""
    return tensor.dtype in ("uint8", "int8") and len(np.unique(tensor.array)) > _LABELS


def has_many_values(integers: Array) -> bool:
    """Check for counts, positions and the like: half of them differ, or more than labels do."""
    return len(np.unique(integers)) > min(_LABELS, integers.size // 2)


def likely_most(count: int, share: float) -> float:
    """Compute how many of ``count`` elements may differ by chance if ``share`` are equal."""
    expected = count * (1 - share)
    return expected + _UNSETTLED * math.sqrt(expected)


def _compare_floats(a: Array, b: Array, tolerance: Tolerance, assembled: bool) -> Comparison:
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    both_nan = np.isnan(x) & np.isnan(y)
    same = both_nan | (~np.isfinite(x) & (x == y))
    unusable = ~(np.isfinite(x) & np.isfinite(y)) & ~same
    if unusable.any():
        count = int(unusable.sum())
        problem = f"{count} of {unusable.size} elements are NaN or infinite"
        if np.isnan(y).any() and not np.isfinite(y[unusable]).any():
            problem += " in the reference itself"
        return _failed(unusable, a, b, problem, Comparison(non_finite=count))
    # of infinities as well: a masked logit is the smallest, not zero
    top1 = _top1(*(np.where(both_nan, -np.inf, side) for side in (x, y)))
    x, y = np.where(same, 0, x), np.where(same, 0, y)
    errors = replace(_errors(x, y), top1=top1)
    if broken := list(broken_limits(errors, tolerance)):
        return _failed(np.abs(x - y), a, b, ", ".join(broken), errors)
    passed = replace(errors, uninformative=_zero_reason(b))
    hidden = _hidden_error(x, y, float(tolerance.get("rtol") or 0.0), assembled)
    if hidden is None:
        return passed
    problem, index, is_excused = hidden
    return replace(passed, note=problem) if is_excused else passed.as_failed(a, b, problem, index)


def broken_limits(errors: Comparison, tolerance: Tolerance) -> Iterator[str]:
    """List the figures beyond their limits."""
    for title, value, limit in (
        ("relative error", errors.relative, tolerance.get("rtol")),
        ("absolute error", errors.max_abs, tolerance.get("atol")),
    ):
        if limit is not None and not value <= limit:  # so that a NaN counts as broken
            yield f"{title} {format_beyond(value, limit)}, allowed {limit:.9g}"
    for title, share, least in (
        ("cosine", errors.cosine, tolerance.get("cosine")),
        ("top-1 agreement", errors.top1, tolerance.get("top1")),
    ):
        if share is not None and least is not None and not share >= least:
            yield f"{title} {format_beyond(share, least)}, at least {least:.9g}"


def _zero_reason(expected: Array) -> str:
    if expected.dtype.kind in "fc" and not np.isfinite(expected).any():
        return "it is NaN or infinite everywhere"
    return "" if np.any(expected) else "it is zero everywhere"


def _hidden_error(
    x: Array, y: Array, rtol: float, assembled: bool
) -> tuple[str, tuple[int, ...], bool] | None:
    """Find the slice with the largest relative error beyond ``rtol``, if any.

    Returns the problem, its place, and whether it is excused.

    The limits apply to the largest magnitude of the whole output, which hides errors of small
    slices: of scores next to box coordinates. Rounding errors of large slices also reach small
    ones (by sums that cancel), so an error is excused if those of large slices are similar. In an
    ``assembled`` output, parts of unlike magnitude are computed apart, and no error is excused.
    """
    distance, sizes = np.abs(x - y), np.abs(y)
    largest = float(sizes.max())
    suspicions: list[tuple[bool, float, int, int]] = []  # not excused, share, axis, place
    for axis in range(y.ndim):
        if not 1 < y.shape[axis] < y.size:
            continue
        others = tuple(i for i in range(y.ndim) if i != axis)
        errors, scales = distance.max(axis=others), sizes.max(axis=others)
        noise = _NOISE * float(errors[scales >= largest / _LARGE].max())
        if assembled:
            scales, noise = _part_scales(scales), 0.0
        suspects = errors > np.maximum(rtol * scales, _FLOOR * largest)
        shares = errors / np.maximum(scales, np.finfo(np.float64).tiny)
        wrong = suspects & (errors > noise)
        worth_noting = suspects & ~wrong & (shares > _WORTH_NOTING)
        for flagged, excused in ((wrong, False), (worth_noting, True)):
            if flagged.any():
                place = int(np.argmax(np.where(flagged, shares, -1.0)))
                suspicions.append((not excused, float(shares[place]), axis, place))
    if not suspicions:
        return None
    is_wrong, share, axis, place = max(suspicions)
    within = np.take(distance, place, axis)
    inner = tuple(int(i) for i in np.unravel_index(int(np.argmax(within)), within.shape))
    error = f"is off by {within.max():.3g}, {share:.3g} of its own magnitude"
    hidden = f"hidden by values up to {largest:.3g} elsewhere"
    problem = f"slice {place} of axis {axis} {error}, {hidden}"
    return problem, (*inner[:axis], place, *inner[axis:]), not is_wrong


def _part_scales(scales: Array) -> Array:
    """Find for each slice the largest scale of its part.

    A gap of a factor ``_LARGE`` between scales separates parts.
    """
    order = np.argsort(scales)[::-1]
    falling = scales[order]
    starts = np.concatenate([[True], falling[1:] * _LARGE < falling[:-1]])
    parts = np.empty_like(scales)
    parts[order] = falling[np.flatnonzero(starts)][np.cumsum(starts) - 1]
    return parts


def _errors(x: Array, y: Array) -> Comparison:
    """Compare finite values, without limits."""
    scale = float(np.abs(y).max())
    if scale == 0.0:
        max_abs = float(np.abs(x).max())
        relative = 0.0 if max_abs == 0.0 else math.inf
    else:  # both divided first: no overflow near the end of float64
        max_abs = float(np.abs(x - y).max())
        relative = float(np.abs(x / scale - y / scale).max())
    return Comparison(max_abs, relative, _cosine(x, y), _top1(x, y), passed=True)


def _top1(x: Array, y: Array) -> float | None:
    if not x.ndim or x.shape[-1] < 2 or x.dtype.kind == "c":
        return None
    rows = y.reshape(-1, y.shape[-1])
    chosen = rows[np.arange(len(rows)), x.reshape(rows.shape).argmax(axis=1)]
    return float((chosen == rows.max(axis=1)).mean())  # ties agree


def _cosine(x: Array, y: Array) -> float:
    longest_x, longest_y = float(np.abs(x).max()), float(np.abs(y).max())
    if longest_x == 0.0 or longest_y == 0.0:
        return 1.0 if longest_x == longest_y else 0.0
    # scaled, as squares of 1e-200 would vanish
    x, y = (x / longest_x).reshape(-1), (y / longest_y).reshape(-1)
    cosine = float(np.real(np.vdot(x, y)) / (np.linalg.norm(x) * np.linalg.norm(y)))
    return min(1.0, max(-1.0, cosine))


def _failed(distance: Array, a: Array, b: Array, problem: str, errors: Comparison) -> Comparison:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(distance)), distance.shape))
    return errors.as_failed(a, b, problem, index)


def _show_apart(*values: Value) -> list[str]:
    """Write values with as many digits as they need to differ."""
    for digits in (6, 9, 17):
        texts = [f"{v:.{digits}g}" if isinstance(v, float) else repr(v) for v in values]
        if len(set(texts)) > 1:
            break
    return texts
