"""Layered layout with few crossings and no edge through a box.

Method: Sugiyama, Tagawa and Toda (1981): ranks, a slot in every row that a long edge passes, order
by barycenters; then x by least squares under that order (pool adjacent violators). All units are
pixels. docs/architecture.md compares it with the library grandalf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise

ROW_GAP = 34.0
COLUMN_GAP = 22.0
_EDGE_WIDTH = 8.0  # width of the slot of a passing edge
_ORDER_SWEEPS = 8
_POSITION_SWEEPS = 24

Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Upper left corners of the boxes and points of the edges."""

    corners: list[Point]
    paths: list[list[Point]]
    width: float
    height: float


@dataclass
class _Slot:
    """A place in a row: of a box, or of an edge."""

    rank: int
    width: float
    box: int | None = None
    up: list[_Slot] = field(default_factory=list)
    down: list[_Slot] = field(default_factory=list)
    at: int = 0  # index in the row
    x: float = 0.0  # center


Rows = list[list[_Slot]]


def place(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Return the layout of boxes with ``sizes`` and acyclic ``edges`` between them."""
    ranks = _ranks(len(sizes), edges)
    slots = [
        _Slot(rank, size[0], box) for box, (rank, size) in enumerate(zip(ranks, sizes, strict=True))
    ]
    rows: Rows = [[] for _ in range(max(ranks, default=-1) + 1)]
    for slot in slots:
        rows[slot.rank].append(slot)
    chains = []
    for begin, end in edges:
        passed = [_Slot(rank, _EDGE_WIDTH) for rank in range(ranks[begin] + 1, ranks[end])]
        chain = [slots[begin], *passed, slots[end]]
        for upper, lower in pairwise(chain):
            upper.down.append(lower)
            lower.up.append(upper)
        for slot in passed:
            rows[slot.rank].append(slot)
        chains.append(chain)
    _order(rows)
    _position(rows)
    heights = [max(sizes[slot.box][1] for slot in row if slot.box is not None) for row in rows]
    tops = [sum(heights[:rank]) + ROW_GAP * rank for rank in range(len(rows))]
    left = min((slot.x - slot.width / 2 for row in rows for slot in row), default=0.0)
    right = max((slot.x + slot.width / 2 for row in rows for slot in row), default=0.0)
    spans = [(top, top + height) for top, height in zip(tops, heights, strict=True)]
    return Layout(
        corners=[(slot.x - slot.width / 2 - left, tops[slot.rank]) for slot in slots],
        paths=_paths(slots, chains, sizes, spans, left),
        width=right - left,
        height=spans[-1][1] if spans else 0.0,
    )


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the row of each box, below its sources."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for begin, end in edges:
        above[end].append(begin)
        below[begin].append(end)
    order = list(TopologicalSorter(dict(enumerate(above))).static_order())
    ranks = [0] * count
    for box in order:
        ranks[box] = max((ranks[source] + 1 for source in above[box]), default=0)
    for box in reversed(order):
        if not above[box] and below[box]:
            ranks[box] = min(ranks[target] for target in below[box]) - 1
    return ranks


def _order(rows: Rows) -> None:
    """Sort rows by barycenters and keep the order with the fewest crossings."""
    best, fewest = rows, math.inf
    for row in rows:
        for at, slot in enumerate(row):
            slot.at = at
    for sweep in range(_ORDER_SWEEPS + 1):
        crossings = 0
        for row in rows:
            ends = [at for slot in row for at in sorted(lower.at for lower in slot.down)]
            crossings += sum(later < end for i, end in enumerate(ends) for later in ends[i + 1 :])
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
        downwards = sweep % 2 == 0
        for row in rows if downwards else reversed(rows):
            keys = {}
            for slot in row:
                near = slot.up if downwards else slot.down
                center = sum(other.at for other in near) / len(near) if near else float(slot.at)
                keys[id(slot)] = center
            row.sort(key=lambda slot: keys[id(slot)])
            for at, slot in enumerate(row):
                slot.at = at
    rows[:] = best


def _position(rows: Rows) -> None:
    """Move slots near those above and below, in turn."""
    for row in rows:
        _pool(row, [0.0] * len(row))
    for sweep in range(_POSITION_SWEEPS):
        downwards, both = sweep % 2 == 0, sweep >= _POSITION_SWEEPS - 4
        for row in rows if downwards else reversed(rows):
            targets = []
            for slot in row:
                near = [*slot.up, *slot.down] if both else slot.up if downwards else slot.down
                targets.append(sum(other.x for other in near) / len(near) if near else slot.x)
            _pool(row, targets)
    for row in rows:  # straighten chains, where there is room
        for at, slot in enumerate(row):
            if len(slot.up) != 1 or len(slot.up[0].down) != 1:
                continue
            low, high = -math.inf, math.inf
            if at:
                low = row[at - 1].x + (row[at - 1].width + slot.width) / 2 + COLUMN_GAP
            if at + 1 < len(row):
                high = row[at + 1].x - (row[at + 1].width + slot.width) / 2 - COLUMN_GAP
            slot.x = max(low, min(high, slot.up[0].x)) if low <= high else slot.x


def _pool(row: Sequence[_Slot], targets: Sequence[float]) -> None:
    """Move the slots of a row close to their targets, without overlaps."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + COLUMN_GAP)
    pools: list[tuple[float, float, int]] = []  # weighted sum of targets, weight, slots
    for slot, target, offset in zip(row, targets, offsets, strict=True):
        weight = 2.0 if slot.box is None else 1.0  # long edges become straight
        pools.append((weight * (target - offset), weight, 1))
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            last, before = pools.pop(), pools.pop()
            pools.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
    centers = [total / weight for total, weight, number in pools for _ in range(number)]
    for slot, center, offset in zip(row, centers, offsets, strict=True):
        slot.x = round(center + offset, 2)


def _paths(
    slots: Sequence[_Slot],
    chains: Sequence[Sequence[_Slot]],
    sizes: Sequence[tuple[float, float]],
    rows: Sequence[tuple[float, float]],
    left: float,
) -> list[list[Point]]:
    """Return the points of each edge. Bends are between rows only."""
    leaving: dict[int, float] = {}  # edge -> x at its first box
    arriving: dict[int, float] = {}
    for slot in slots:
        for found, here, near in ((leaving, 0, 1), (arriving, -1, -2)):
            mine = sorted(
                (chain[near].x, at) for at, chain in enumerate(chains) if chain[here] is slot
            )
            for place, (_, at) in enumerate(mine):
                found[at] = slot.x + slot.width * 0.7 * ((place + 1) / (len(mine) + 1) - 0.5)
    paths = []
    for at, chain in enumerate(chains):
        begin, end = chain[0], chain[-1]
        height = sizes[begin.box][1] if begin.box is not None else 0.0
        points = [(leaving[at], rows[begin.rank][0] + height), (leaving[at], rows[begin.rank][1])]
        for passed in chain[1:-1]:
            points += [(passed.x, y) for y in rows[passed.rank]]
        points.append((arriving[at], rows[end.rank][0]))
        paths.append([(round(x - left, 2), round(y, 2)) for x, y in points])
    return paths
