"""Differences explained by the last bits of the numbers.

Rounding the result of an operation has the effect of a small change of its operands (backward
error analysis), so two right implementations differ about as much as one of them does after a
change of all weights and inputs in the last bit (Monte Carlo arithmetic). A network that amplifies
rounding, e.g. by subtracting similar numbers or by sorting nearly equal scores, cannot be compared
more exactly than that. Another shape or type, NaN and infinity are never a matter of rounding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.agreement import ComparedCase
from buildsys.onnx_graphs.result_types import format_beyond, format_error
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import Tensor

UNSTABLE = "its outputs depend on the last bits of the numbers"
_NOISE_DRAWS, _FACTOR = 3, 4.0  # both sides round, at more places than weights and inputs
_MOST = 10.0  # times the limit: errors beyond it are never excused
_DRAWS = 6  # changes of the last bits
_FARTHER = 4.0  # the last bits of one draw hit other elements than rounding
_MORE = 1.5  # elements, compared with the draw that moves most
_UNORDERED = ("detections", "set")  # policies that compare no element with the same place
Tensors = Mapping[str, Tensor]
Compare = Callable[[Tensors, Tensors, float], Mapping[str, Comparison]]  # actual, expected, rtol


def excuse_noise(
    case: ComparedCase, compare: Compare, nudged: Callable[[int], Tensors], rtol: float
) -> ComparedCase:
    """Pass the errors that rounding noise explains.

    Such an error is at most ``_FACTOR`` times the noise and ``_MOST`` times ``rtol``; the other
    limits hold. ``nudged`` computes the outputs after a change of the last bits.
    """
    failed = [name for name, comparison in case.compared.items() if not comparison.passed]
    if not failed:
        return case
    widest = compare(case.actual, case.expected, _MOST * rtol)
    noise = {name: 0.0 for name in failed if widest[name].passed}
    compared = dict(case.compared)
    for draw in range(_NOISE_DRAWS if noise else 0):
        moved = compare(nudged(draw), case.actual, _MOST * rtol)
        noise = {name: max(most, moved[name].relative) for name, most in noise.items()}
    for name, moved_by in noise.items():
        limit = min(max(rtol, _FACTOR * moved_by), _MOST * rtol)
        again = compare(case.actual, case.expected, limit)[name]
        if again.passed:
            note = (
                f"its relative error {format_beyond(again.relative, rtol)} is beyond {rtol:g},"
                f" but a change of the last bits moves this output by {format_error(moved_by)}"
            )
            compared[name] = replace(again, note=note)
    return replace(case, compared=compared)


def is_unstable(
    case: ComparedCase, nudged: Callable[[int], ComparedCase], rtol: float | None
) -> bool:
    """Check if changes of the last bits explain every wrong output of a case.

    They do if they move an output as far, and as many of its elements. ``nudged`` compares the
    outputs after a change with those before. A limit below the last bit asks for equal outputs.
    """
    failed = [name for name, comparison in case.compared.items() if not comparison.passed]
    if not failed or not all(is_of_values(case, name) for name in failed):
        return False
    if rtol is not None and any(rtol < _last_bit(case.expected[name]) for name in failed):
        return False
    try:
        draws = [nudged(number) for number in range(_DRAWS)]
    except StageError:  # the changed numbers are refused
        return False
    return all(_is_explained(case, name, draws, rtol or 0.0) for name in failed)


def _is_explained(
    case: ComparedCase, name: str, draws: Sequence[ComparedCase], rtol: float
) -> bool:
    moved = [d for d in draws if is_of_values(d, name) and not d.compared[name].passed]
    if not moved:
        return False
    distance, count = _difference(case, name, rtol)
    distances, counts = zip(*(_difference(draw, name, rtol) for draw in moved), strict=True)
    return bool(distance <= _FARTHER * max(distances)) and count <= _MORE * max(counts)


def _last_bit(tensor: Tensor) -> float:
    kind = tensor.values().dtype
    return float(np.finfo(kind).eps) if kind.kind in "fc" else 0.0


def is_of_values(case: ComparedCase, name: str) -> bool:
    """Check that both sides have one type and shape, and finite numbers at equal places."""
    if name not in case.actual or name not in case.expected:
        return False
    ours, theirs = case.actual[name], case.expected[name]
    same_kind = ours.dtype == theirs.dtype and ours.shape == theirs.shape
    return same_kind and not case.compared[name].non_finite


def _difference(case: ComparedCase, name: str, rtol: float) -> tuple[float, int]:
    """Measure the largest difference, and count the elements beyond the limit.

    Without an order, the values are compared in rising order. Strings have no distance.
    """
    x, y = case.actual[name].values(), case.expected[name].values()
    if case.compared[name].policy in _UNORDERED:
        x, y = np.sort(x, axis=None), np.sort(y, axis=None)
    if y.dtype.kind not in "biufc":
        return 0.0, int((x != y).sum())
    if y.dtype.kind in "biu":
        x, y, rtol = x.astype(np.float64), y.astype(np.float64), 0.0
    finite = np.isfinite(y)
    distances = np.abs(x[finite] - y[finite])
    limit = rtol * float(np.abs(y[finite]).max(initial=0.0))
    return float(distances.max(initial=0.0)), int((distances > limit).sum())
