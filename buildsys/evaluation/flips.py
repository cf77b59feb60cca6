"""The samples that change most between the original and an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from buildsys.evaluation.metric import Metric, Records

_MOST = 24


class Flip(NamedTuple):
    """A sample whose prediction became better or worse."""

    row: int
    name: str
    label: str
    original: str  # prediction for people
    engine: str
    change: float  # of its error; positive is worse


def find_flips(
    metric: Metric, names: Sequence[str], original: Records, engine: Records, most: int = _MOST
) -> list[Flip]:
    """List the largest changes, of equal ones the worse first."""
    change = metric.errors(engine) - metric.errors(original)
    order = np.lexsort((-change, -abs(change)))[:most]
    flips = []
    for row in order[change[order] != 0].tolist():
        before, label = metric.describe(original, row)
        after, _ = metric.describe(engine, row)
        flips.append(Flip(row, names[row], label, before, after, float(change[row])))
    return flips
