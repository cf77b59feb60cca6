"""Matching of rows, and of detections by label, score and intersection over union.

Detectors sort by score and cut their lists, so rounding can swap rows of nearly equal score and
replace the last ones. Row-by-row comparison would reject correct graphs.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from buildsys.onnx_graphs.tensors import Array, Tensor

_BLOCK = 1 << 22  # elements of a temporary array
_MAX_CUT = 0.1  # share of a list that may be cut off on one side only


@dataclass(frozen=True)
class Matches:
    """Indices of matched rows, with leading dimensions flattened, and the unmatched ones."""

    actual: Array
    expected: Array
    problems: tuple[str, ...]


@dataclass(frozen=True)
class _Detections:
    """The detections of one image."""

    rows: Array  # indices with leading dimensions flattened
    boxes: Array  # [n, 4] as corners
    scores: Array
    labels: Array


def match_detections(
    boxes: str,
    policy: Mapping[str, Any],
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    rtol: float,
) -> Matches:
    """Match the rows of ``boxes`` [..., n, 4+] and its companions.

    Boxes are equal within ``rtol`` of their largest coordinate: clipping makes boxes without width
    or height, whose overlap depends on the last bits.
    A detection may be unmatched if its score is within the limit of the lowest score on the other
    side, where that list was cut off; for an empty list that is the least score. Of two lists with
    detections at least one must match, or a single wrong box would count as cut off.
    """
    ours, theirs = (_read(boxes, policy, outputs) for outputs in (actual, expected))
    limit = policy["score"]
    if limit is None:
        limit = rtol * max((float(image.scores.max(initial=0)) for image in theirs), default=0.0)
    none = np.zeros(0, dtype=int)
    pairs, problems = [(none, none)], []
    for index, (here, there) in enumerate(zip(ours, theirs, strict=True)):
        close = np.abs(there.scores[:, None] - here.scores[None]) <= limit
        same = there.labels[:, None] == here.labels[None]
        fits = (_overlap(there.boxes, here.boxes, rtol) >= policy["iou"]) & close & same
        matched = match_rows([np.flatnonzero(row) for row in fits])
        is_matched = matched >= 0
        pairs.append((here.rows[matched[is_matched]], there.rows[is_matched]))
        where = f" in image {index}" if len(ours) > 1 else ""
        extra = np.setdiff1d(np.arange(len(here.rows)), matched)
        for side, rows, other, whose in (
            (there, np.flatnonzero(~is_matched), here, "the reference"),
            (here, extra, there, "the output"),
        ):
            if not rows.size:
                continue
            lowest = float(other.scores.min()) if other.rows.size else 0.0
            cut_off = side.scores[rows] <= max(policy["min_score"], lowest) + limit
            few = len(rows) <= max(1, _MAX_CUT * len(side.rows))
            if cut_off.all() and few and (is_matched.any() or not other.rows.size):
                continue
            count = f"{len(rows)} of {len(side.rows)} detections of {whose} have no counterpart"
            first = rows[int(np.argmin(cut_off))]
            problems.append(f"{count}{where}: {_describe(side, first, other)}")
    actual_rows, expected_rows = map(np.concatenate, zip(*pairs, strict=True))
    return Matches(actual_rows, expected_rows, tuple(problems))


def _read(name: str, policy: Mapping[str, Any], outputs: Mapping[str, Tensor]) -> list[_Detections]:
    """Read the detections of every image with at least the least score."""
    values = outputs[name].values().astype(np.float64)
    *leading, count, _ = values.shape

    def column(role: str) -> Array:
        if policy[f"{role}s"] is not None:
            companion = outputs[policy[f"{role}s"]].values().astype(np.float64)
            return companion.reshape(*leading, count)
        index = policy[f"{role}_column"]
        return np.zeros((*leading, count)) if index is None else values[..., index]

    scores, labels = column("score"), column("label")
    images = []
    for image, at in enumerate(np.ndindex(*leading)):
        usable = np.flatnonzero(scores[at] >= policy["min_score"])
        start, end = values[at][usable, :2], values[at][usable, 2:4]
        if policy["format"] == "cxcywh":
            start = start - end / 2
        if policy["format"] != "xyxy":
            end = start + end
        boxes = np.concatenate([start, end], axis=1)
        images.append(
            _Detections(usable + image * count, boxes, scores[at][usable], labels[at][usable])
        )
    return images


def _overlap(first: Array, second: Array, rtol: float = 0.0) -> Array:
    """Compute the intersection over union of all pairs. Equal boxes have 1."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    both = np.clip(high - low, 0, None).prod(axis=2)
    areas = [
        np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1) for boxes in (first, second)
    ]
    union = areas[0][:, None] + areas[1][None] - both
    limits = rtol * np.abs(first).max(axis=1, initial=0)
    equal = np.abs(first[:, None] - second[None]).max(axis=2) <= limits[:, None]
    return np.where(equal, 1.0, both / np.where(union > 0, union, 1.0))


def _describe(side: _Detections, row: int, other: _Detections) -> str:
    box = ", ".join(f"{value:.4g}" for value in side.boxes[row])
    overlap = _overlap(side.boxes[row : row + 1], other.boxes)
    nearest = f"the best IoU is {overlap.max():.2f}" if overlap.size else "the other list is empty"
    detection = f"label {side.labels[row]:g}, score {side.scores[row]:.3g}, box [{box}]"
    return f"the first has {detection}; {nearest}"


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
