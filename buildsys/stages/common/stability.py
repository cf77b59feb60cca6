"""Differences explained by the last bits of the numbers.

Two right implementations differ as well, for example in the order of nearly equal scores. Such a
difference is at most comparable to what a change of the last bits does to one of them: it moves
values about as far, and about as many of them. Another shape or type, NaN and infinity are never
a matter of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import Tensor

UNSTABLE = "its outputs depend on the last bits of the numbers"
DRAWS = 6  # changes of the last bits
_FARTHER = 16.0  # the last bits of one draw hit other elements than rounding
_MORE = 1.5  # elements, compared with the draw that moves most
_UNORDERED = ("detections", "set")  # policies that compare no element with that of its place


@dataclass(frozen=True)
class Difference:
    """An output, what it is compared with, and the verdict."""

    actual: Tensor
    expected: Tensor
    comparison: Comparison

    @property
    def is_of_values(self) -> bool:
        """True if both have one type and shape, and finite numbers at equal places."""
        ours, theirs = self.actual, self.expected
        same_kind = ours.dtype == theirs.dtype and ours.shape == theirs.shape
        return same_kind and not self.comparison.non_finite

    def moved(self, rtol: float) -> int:
        """Count the elements beyond ``rtol`` of the largest magnitude, or unequal ones."""
        x, y = self.actual.values(), self.expected.values()
        if y.dtype.kind not in "fc":
            return int((x != y).sum())
        finite = np.isfinite(y)
        limit = rtol * float(np.abs(y[finite]).max(initial=0.0))
        return int((np.abs(x[finite] - y[finite]) > limit).sum())


def is_explained(failure: Difference, draws: Sequence[Difference], rtol: float) -> bool:
    """Check if changes of the last bits move an output as far, and as many of its elements.

    ``draws`` compare the output after each change with the one before.
    """
    if not failure.is_of_values:
        return False
    alike = [draw for draw in draws if draw.is_of_values and not draw.comparison.passed]
    farthest = max((draw.comparison.relative for draw in alike), default=0.0)
    if not alike or not failure.comparison.relative <= _FARTHER * farthest:
        return False
    if failure.comparison.policy in _UNORDERED:
        return True
    return failure.moved(rtol) <= _MORE * max(draw.moved(rtol) for draw in alike)


def are_explained(
    failures: Mapping[str, Difference],
    draw: Callable[[int], Mapping[str, Difference]],
    rtol: float | None,
) -> bool:
    """Check if changes of the last bits explain every failed output.

    ``draw`` changes them, differently for every number, and compares all outputs.
    """
    if not failures or not all(failure.is_of_values for failure in failures.values()):
        return False
    try:
        changes = [draw(number) for number in range(DRAWS)]
    except StageError:  # the changed numbers are refused
        return False
    return all(
        is_explained(failure, [change[name] for change in changes if name in change], rtol or 0.0)
        for name, failure in failures.items()
    )
