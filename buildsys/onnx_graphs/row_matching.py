"""One-to-one matching of the rows of two outputs, e.g. of detections."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from buildsys.onnx_graphs.tensors import Array

_BLOCK = 1 << 22  # elements of a temporary array


def close_rows(x: Array, y: Array, limits: Array) -> list[Array]:
    """Find the rows of ``x`` within ``limits`` of each row of ``y``."""
    step = max(1, _BLOCK // max(1, x.size))
    near: list[Array] = []
    for start in range(0, len(y), step):
        part = y[start : start + step, None]
        with np.errstate(invalid="ignore"):  # inf - inf
            close = (np.abs(x - part) <= limits) | (x == part)
        near += [np.flatnonzero(row) for row in close.all(axis=2)]
    return near


def match_rows(candidates: Sequence[Array]) -> Array:
    """Assign each row one candidate, each to one row, or -1.

    As many rows as possible are matched, by augmenting paths.
    """
    owner: dict[int, int] = {}
    matched = np.full(len(candidates), -1)
    for row in range(len(candidates)):
        reached: dict[int, int] = {}  # candidate -> the row that reached it
        queue, free = deque([row]), -1
        while queue and free < 0:
            current = queue.popleft()
            near = candidates[current]
            # nearest first, so rows stay in place if they can
            for candidate in near[np.argsort(abs(near - current), kind="stable")].tolist():
                if candidate in reached:
                    continue
                reached[candidate] = current
                if candidate not in owner:
                    free = candidate
                    break
                queue.append(owner[candidate])
        while free >= 0:  # reassign the rows along the path
            current = reached[free]
            previous = int(matched[current])
            owner[free], matched[current] = current, free
            free = -1 if current == row else previous
    return matched
