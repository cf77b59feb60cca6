"""Comparison of all outputs of a case, each by its policy.

A policy is the map of ``outputs.NAME.compare`` in the manifest. Outputs without one are compared by
``tensor_comparison.compare``, except that rows of equal score may be in another order: no runtime
defines it.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.detections import close_rows, match_detections, match_rows
from buildsys.onnx_graphs.tensor_comparison import DIFFER, Comparison, Tolerance, compare
from buildsys.onnx_graphs.tensors import Array, Tensor

Policy = Mapping[str, Any]
Outputs = Mapping[str, Tensor]
_AUTO: Policy = {"policy": "auto", "allow_zero": False}
_NARROW = 64  # elements of a row
_Failure = tuple[str, tuple[int, ...] | None]  # the problem, and the worst element
_TIED = "its scores are nearly equal everywhere"
DECIDED = f"{DIFFER} where rounding decides: between equal scores, or next to a step"
REORDERED = "rows of equal score are in another order"


def compare_outputs(
    actual: Outputs,
    expected: Outputs,
    tolerance: Tolerance,
    policies: Mapping[str, Policy] | None = None,
    *,
    inputs: Outputs,
    assembled: Collection[str] = (),
    alternatives: Mapping[str, Array] | None = None,
) -> dict[str, Comparison]:
    """Compare every expected output; ``actual`` has all of them.

    ``inputs`` of the case have the sizes of samples: rows as many as these keep their order.
    ``assembled`` are the outputs made of unlike parts. ``alternatives`` are those of a case.
    """
    alternatives = alternatives or {}
    policies = {name: policy for name, policy in (policies or {}).items() if name in expected}
    compared: dict[str, Comparison] = {}
    for name, policy in policies.items():
        if policy["policy"] == "detections":
            compared |= _compare_detections(name, policy, actual, expected, tolerance)
    for name in [name for name in expected if name not in compared]:
        whole = compare(actual[name], expected[name], tolerance, name in assembled)
        if whole.passed and DIFFER in whole.note:
            whole = _refuse_repeated(whole, actual[name], expected[name], inputs)
        if name in alternatives and not whole.passed:
            whole = _allow_alternatives(whole, actual[name], expected[name], alternatives[name])
        policy = policies.get(name, _AUTO)
        _require_axis(name, policy, expected[name].shape)
        if policy["policy"] != "auto":
            whole = _apply_policy(policy, whole, actual[name], expected[name], tolerance)
        compared[name] = whole
    plain = [name for name, comparison in compared.items() if not comparison.policy]
    if not all(compared[name].passed for name in plain):
        sizes = {(size,) for tensor in inputs.values() for size in tensor.shape}
        unordered = [name for name in plain if expected[name].shape[:1] not in sizes]
        scores = [name for name in unordered if compared[name].passed and _falls(expected[name])]
        compared |= _reordered(unordered, scores, actual, expected, tolerance)
    for name, rows in alternatives.items():
        if compared[name].passed and _tie_everywhere(rows, expected[name].array.size):
            compared[name] = replace(compared[name], uninformative=_TIED)
    for name, policy in policies.items():
        if policy["allow_zero"] and compared[name].uninformative:
            note = f"{compared[name].uninformative}, as allowed"
            compared[name] = replace(compared[name], uninformative="", note=note)
    return {name: compared[name] for name in expected}


def _allow_alternatives(
    whole: Comparison, actual: Tensor, expected: Tensor, alternatives: Array
) -> Comparison:
    """Pass integers that differ at alternatives only, and no index twice."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return whole
    ours = actual.array.reshape(-1)
    changed = np.flatnonzero(ours != expected.array.reshape(-1))
    places, least, most, groups = alternatives.T
    is_right = (least <= ours[places]) & (ours[places] <= most)
    indices = np.unique(np.stack([groups, places])[:, groups >= 0], axis=1)
    again = np.stack([indices[0], ours[indices[1]]])
    is_again = np.unique(again, axis=1).shape != again.shape
    if is_again or np.setdiff1d(changed, places[is_right]).size:
        return whole
    return replace(whole.as_passed(), note=f"{changed.size} of {ours.size} {DECIDED}")


def _refuse_repeated(
    whole: Comparison, actual: Tensor, expected: Tensor, inputs: Outputs
) -> Comparison:
    """Fail integers that repeat along an axis where the reference's do not.

    Such are the indices of the largest scores: each is chosen once. Samples choose apart.
    """
    samples = {tensor.shape[:1] for tensor in inputs.values()}
    for axis in range(expected.array.ndim) if expected.dtype != "bool" else ():
        repeats, others = (
            int((np.diff(np.sort(side.array, axis), axis=axis) == 0).sum())
            for side in (actual, expected)
        )
        if repeats and not others and (axis or expected.shape[:1] not in samples):
            problem = f"repeats {repeats} values along axis {axis}, none may"
            return whole.as_failed(actual.array, expected.array, problem)
    return whole


def _tie_everywhere(alternatives: Array, size: int) -> bool:
    """Check if each of ``size`` indices may be any other."""
    _, _, most, groups = alternatives.T
    return bool(len(most) == size * (most.max(initial=0) + 1) and (groups >= 0).all())


def load_assembled(path: Path | None) -> list[str]:
    """Read the assembled outputs, as written by simplify; none without a file."""
    return [] if path is None else list(json.loads(path.read_text())["outputs"])


def load_empty(path: Path | None) -> dict[str, Policy]:
    """Read the outputs without elements at any size, with the policy that their shape is enough."""
    names = [] if path is None else json.loads(path.read_text()).get("empty", [])
    return {name: {**_AUTO, "allow_zero": True} for name in names}


def uninformative_outputs(cases: Iterable[Mapping[str, Comparison]]) -> dict[str, str]:
    """Map the outputs without an informative case to the reasons."""
    reasons: dict[str, list[str]] = {}
    for outputs in cases:
        for name, comparison in outputs.items():
            reasons.setdefault(name, []).append(comparison.uninformative)
    return {name: reasons[0] for name, reasons in reasons.items() if all(reasons)}


def _apply_policy(
    policy: Policy, whole: Comparison, actual: Tensor, expected: Tensor, tolerance: Tolerance
) -> Comparison:
    """Judge a compared output by its policy."""
    a, b = actual.values(), expected.values()
    # another type or shape, NaN and empty outputs have the same verdict by every policy
    if actual.dtype != expected.dtype or a.shape != b.shape or whole.non_finite or not b.size:
        return whole
    kind = policy["policy"]
    if b.dtype.kind not in "biuf" or (b.dtype.kind != "f" and kind == "tokens"):
        text = "tokens differ" if kind == "tokens" else DIFFER
        failure = _share_of_equal(np.asarray(a == b), policy, text)
    else:
        x, y = a.astype(np.float64), b.astype(np.float64)
        both_nan = np.isnan(x) & np.isnan(y)
        x, y = np.where(both_nan, 0.0, x), np.where(both_nan, 0.0, y)
        with np.errstate(over="ignore", invalid="ignore"):
            failure = _POLICIES[kind](x, y, policy, tolerance)
    has_own_limits = any(policy.get(name) is not None for name in ("rtol", "atol"))
    has_own_limits |= policy.get("agreement", 1.0) < 1
    whole = replace(whole, policy=kind, has_own_limits=has_own_limits, note="")
    if failure is None:
        return whole.as_passed()
    return whole.as_failed(a, b, *failure)


def _require_axis(name: str, policy: Policy, shape: tuple[int, ...]) -> None:
    """Check the axis of a policy. Raises: StageError: the output has no such axis."""
    axis = policy.get("axis")
    if axis is not None and not -len(shape) <= axis < len(shape):
        problem = f"output {name} has shape {list(shape)}, but its comparison has axis {axis}"
        raise StageError(problem, f"correct outputs.{name}.compare")


def _rtol(policy: Policy, tolerance: Tolerance) -> float:
    limit = tolerance.get("rtol") if policy.get("rtol") is None else policy["rtol"]
    return limit or 0.0


def _elementwise(x: Array, y: Array, policy: Policy, tolerance: Tolerance) -> _Failure | None:
    """Compare each element: |x - y| <= rtol * |y| + atol.

    ``atol`` defaults to rtol times the root mean square of the reference.
    """
    rtol, atol, sizes = _rtol(policy, tolerance), policy["atol"], _sizes(y)
    if atol is None:
        largest = float(sizes.max()) or 1.0  # divided first: squares of 1e200 overflow
        atol = rtol * largest * float(np.sqrt(np.mean((sizes / largest) ** 2)))
    excess = _distances(x, y) - (rtol * sizes + atol)
    wrong = int((excess > 0).sum())
    if not wrong:
        return None
    allowed = f"{rtol:g} of the reference + {atol:.3g}"
    return f"{wrong} of {y.size} elements differ by more than {allowed}", _worst(excess)


def _per_channel(x: Array, y: Array, policy: Policy, tolerance: Tolerance) -> _Failure | None:
    """Compare each slice of an axis relative to its own largest magnitude."""
    rtol = _rtol(policy, tolerance)
    axis = policy["axis"] % y.ndim
    others = tuple(i for i in range(y.ndim) if i != axis)
    distance = _distances(x, y)
    errors, scales = distance.max(axis=others), _sizes(y).max(axis=others)
    broken = errors > rtol * scales + (policy["atol"] or 0.0)
    if not broken.any():
        return None
    tiny = np.finfo(np.float64).tiny
    worst = int(np.argmax(np.where(broken, errors / np.maximum(scales, tiny), -1.0)))
    place = _worst(np.take(distance, worst, axis))
    error = f"{errors[worst]:.3g}; its largest value is {scales[worst]:.3g}, allowed are {rtol:g}"
    problem = f"channel {worst} of axis {axis} is off by {error} of it"
    return problem, (*place[:axis], worst, *place[axis:])


def _top_k(x: Array, y: Array, policy: Policy, tolerance: Tolerance) -> _Failure | None:
    """Compare the k largest entries of each row. Ties may swap."""
    axis = policy["axis"]
    x, y = (np.moveaxis(values, axis, -1).reshape(-1, y.shape[axis]) for values in (x, y))
    k = min(policy["k"], y.shape[1])
    slack = _rtol(policy, tolerance) * _sizes(y).max(axis=1, keepdims=True)
    least = np.sort(y, axis=1)[:, -k, None]
    chosen = np.argsort(-x, axis=1, kind="stable")[:, :k]
    values = np.take_along_axis(y, chosen, axis=1)
    off = np.abs(np.take_along_axis(x, chosen, axis=1) - values)
    wrong = ((values < least - slack) | (off > slack)).any(axis=1)
    return _share_of_equal(~wrong, policy, f"rows have another top {k}")


def _tokens(x: Array, y: Array, policy: Policy, tolerance: Tolerance) -> _Failure | None:
    """Compare the largest entry along the last axis. Ties may swap."""
    x, y = np.atleast_1d(x), np.atleast_1d(y)
    slack = _rtol(policy, tolerance) * _sizes(y).max(axis=-1)
    chosen = np.take_along_axis(y, x.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return _share_of_equal(chosen >= y.max(axis=-1) - slack, policy, "tokens differ")


def _share_of_equal(equal: Array, policy: Policy, what: str) -> _Failure | None:
    least = policy.get("agreement", 1.0)
    if equal.mean() >= least:
        return None
    count = f"{int((~equal).sum())} of {equal.size} {what}"
    index = tuple(int(i) for i in np.argwhere(~equal)[0])
    return f"{count}, the first at {list(index)}; at least {least:g} must agree", None


def _set(x: Array, y: Array, policy: Policy, tolerance: Tolerance) -> _Failure | None:
    """Compare the rows of an axis in any order."""
    axis = policy["axis"] % y.ndim
    sides = [values.reshape(int(np.prod(y.shape[:axis])), y.shape[axis], -1) for values in (x, y)]
    limits = _rtol(policy, tolerance) * _sizes(sides[1]).max(axis=(0, 1)) + (policy["atol"] or 0.0)
    for rows_x, rows_y in zip(*sides, strict=True):
        missing = np.flatnonzero(match_rows(close_rows(rows_x, rows_y, limits)) < 0)
        if missing.size:
            count = f"{missing.size} of {len(rows_y)} rows of the reference have no counterpart"
            return f"{count}, the first is row {missing[0]}", None
    return None


_POLICIES: Mapping[str, Callable[[Array, Array, Policy, Tolerance], _Failure | None]] = {
    "elementwise": _elementwise,
    "per_channel": _per_channel,
    "top_k": _top_k,
    "tokens": _tokens,
    "set": _set,
}


def _sizes(values: Array) -> Array:
    """Compute the magnitudes of finite values. An infinity would make any limit infinite."""
    return np.where(np.isfinite(values), np.abs(values), 0.0)


def _distances(x: Array, y: Array) -> Array:
    """Compute the absolute differences; 0 for equal infinities."""
    return np.where(x == y, 0.0, np.abs(x - y))


def _worst(values: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(values)), values.shape))


def _compare_detections(
    name: str, policy: Policy, actual: Outputs, expected: Outputs, tolerance: Tolerance
) -> dict[str, Comparison]:
    """Compare boxes and their companions, with the figures of matched rows."""
    outputs = (name, policy["labels"], policy["scores"], *policy["rows"])
    members = [member for member in outputs if member in expected]
    depth = expected[name].array.ndim - 1  # up to the axis of the rows
    shape = expected[name].shape
    columns = 1 + max(3, *(policy[f"{role}_column"] or 0 for role in ("label", "score")))
    companions = {member: expected[member].shape for member in members[1:]}
    fits = [
        rows[:depth] == shape[:depth] and (member in policy["rows"] or not rows[depth:])
        for member, rows in companions.items()
    ]
    if depth < 1 or shape[-1] < columns or not all(fits):
        problem = f"output {name} has shape {list(shape)}, its companions {companions}"
        text = f"{problem}; detections need [..., n, {columns}] or more columns, others [..., n]"
        raise StageError(text, f"correct outputs.{name}.compare")
    for member in members:
        ours, theirs = actual[member], expected[member]
        shapes = [(t.dtype, t.shape[: depth - 1], t.shape[depth:]) for t in (ours, theirs)]
        other_rows = ours.shape[:depth] != actual[name].shape[:depth]
        if other_rows or shapes[0] != shapes[1] or ours.non_finite() or theirs.non_finite():
            return {m: compare(actual[m], expected[m], tolerance) for m in members}
    matches = match_detections(name, policy, actual, expected, _rtol({}, tolerance))
    comparisons = {}
    for member in members:
        ours, theirs = (
            Tensor(of[member].array.reshape(-1, *of[member].shape[depth:])[rows], of[member].dtype)
            for of, rows in ((actual, matches.actual), (expected, matches.expected))
        )
        whole = compare(ours, theirs, tolerance)
        if member in (name, policy["labels"], policy["scores"]):  # matched within their own limits
            whole = whole.as_passed()
        comparisons[member] = replace(whole, policy="detections")
    if matches.problems:
        problem = " and ".join(matches.problems)
        comparisons[name] = comparisons[name].as_failed(ours.array, theirs.array, problem)
    return comparisons


def _reordered(
    names: Iterable[str],
    scores: Collection[str],
    actual: Outputs,
    expected: Outputs,
    tolerance: Tolerance,
) -> dict[str, Comparison]:
    """Compare outputs with rows of equal score reordered; {} unless they pass.

    Such outputs have as many rows as one of ``scores``, the correct outputs in falling order.
    """
    by_rows: dict[int, list[str]] = {}
    for name in names:
        shape = expected[name].shape
        if shape and shape == actual[name].shape and shape[0] > 1:
            by_rows.setdefault(shape[0], []).append(name)
    comparisons: dict[str, Comparison] = {}
    for rows, group in by_rows.items():
        # the order found by narrow rows is checked with the wide ones
        narrow = [
            name
            for name in group
            if expected[name].array.size <= _NARROW * rows
            and expected[name].values().dtype.kind in "biuf"
        ]
        if not set(scores) & set(narrow):
            continue
        ours, theirs = (
            np.concatenate([_rows(of[name], rows) for name in narrow], axis=1)
            for of in (actual, expected)
        )
        limits = np.concatenate([_row_limits(expected[name], rows, tolerance) for name in narrow])
        order = match_rows(close_rows(ours, theirs, limits))
        if (order < 0).any():
            continue
        again = {}
        for name in group:
            moved = Tensor(actual[name].array[order], actual[name].dtype)
            again[name] = replace(compare(moved, expected[name], tolerance), note=REORDERED)
        if all(comparison.passed for comparison in again.values()):
            comparisons |= again
    return comparisons


def _falls(tensor: Tensor) -> bool:
    values = tensor.values()
    return values.ndim == 1 and values.dtype.kind == "f" and bool((np.diff(values) <= 0).all())


def _rows(tensor: Tensor, rows: int) -> Array:
    return tensor.values().reshape(rows, -1).astype(np.float64)


def _row_limits(tensor: Tensor, rows: int, tolerance: Tolerance) -> Array:
    values = _rows(tensor, rows)
    is_float = tensor.values().dtype.kind == "f"
    limit = _rtol({}, tolerance) * _sizes(values).max(initial=0.0) if is_float else 0.0
    return np.full(values.shape[1], limit)
