"""Place boxes in rows so that arrows lead down, cross seldom and never run through a box.

The method is that of Sugiyama, Tagawa and Toda (1981): ranks, one place per rank in a long edge, order by barycenters;
then x by least squares under the order (pooling adjacent violators). Everything is in the units of the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

ROW_GAP = 34.0
COLUMN_GAP = 22.0
_EDGE_WIDTH = 8.0  # what a long edge takes of a row that it passes
_SWEEPS = 8
_PLACING_SWEEPS = 24

Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Upper left corners of the boxes, and the points that each edge goes through."""

    corners: list[Point]
    paths: list[list[Point]]
    width: float
    height: float


@dataclass
class _Cell:
    """A place in a row: of a box, or of an edge that passes (``box`` is None)."""

    rank: int
    width: float
    box: int | None = None
    up: list[_Cell] = field(default_factory=list)
    down: list[_Cell] = field(default_factory=list)
    at: int = 0  # its place in the row
    x: float = 0.0  # its middle


def place(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Return where boxes of given sizes go; edges point from one box to another and make no circle."""
    ranks = _ranks(len(sizes), edges)
    cells = [
        _Cell(rank, size[0], box) for box, (rank, size) in enumerate(zip(ranks, sizes, strict=True))
    ]
    chains = [_chain(cells[begin], cells[end]) for begin, end in edges]
    rows = _rows(cells, chains)
    _order(rows)
    _place_columns(rows)
    heights = [
        max((sizes[cell.box][1] for cell in row if cell.box is not None), default=0.0)
        for row in rows
    ]
    tops = [sum(heights[:rank]) + ROW_GAP * rank for rank in range(len(rows))]
    left = min((cell.x - cell.width / 2 for row in rows for cell in row), default=0.0)
    corners = [(cell.x - cell.width / 2 - left, tops[cell.rank]) for cell in cells]
    paths = _paths(
        cells,
        chains,
        sizes,
        [(top, top + height) for top, height in zip(tops, heights, strict=True)],
        left,
    )
    right = max((cell.x + cell.width / 2 for row in rows for cell in row), default=0.0)
    return Layout(corners, paths, right - left, (tops[-1] + heights[-1]) if rows else 0.0)


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the row of each box: below all that lead to it; what begins somewhere is close to where it leads."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for begin, end in edges:
        above[end].append(begin)
        below[begin].append(end)
    ranks = [0] * count
    order = _topological(above, below)
    for box in order:
        ranks[box] = max((ranks[other] + 1 for other in above[box]), default=0)
    for box in reversed(order):
        if not above[box] and below[box]:
            ranks[box] = min(ranks[other] for other in below[box]) - 1
    return ranks


def _topological(above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> list[int]:
    missing = [len(others) for others in above]
    ready = [box for box, count in enumerate(missing) if not count]
    order = []
    while ready:
        box = ready.pop(0)
        order.append(box)
        for other in below[box]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return order


def _chain(begin: _Cell, end: _Cell) -> list[_Cell]:
    """Return the cells of an edge: both boxes, and one in each row between them."""
    between = [_Cell(rank, _EDGE_WIDTH) for rank in range(begin.rank + 1, end.rank)]
    chain = [begin, *between, end]
    for upper, lower in pairwise(chain):
        upper.down.append(lower)
        lower.up.append(upper)
    return chain


def _rows(cells: Iterable[_Cell], chains: Iterable[Sequence[_Cell]]) -> list[list[_Cell]]:
    every = [*cells, *(cell for chain in chains for cell in chain[1:-1])]
    rows: list[list[_Cell]] = [
        [] for _ in range(max((cell.rank for cell in every), default=-1) + 1)
    ]
    for cell in every:
        rows[cell.rank].append(cell)
    return rows


def _order(rows: list[list[_Cell]]) -> None:
    """Sort rows by the barycenters of their neighbours, down and up in turn; keep what has the fewest crossings."""
    _number(rows)
    best, fewest = [list(row) for row in rows], _crossings(rows)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        for row in rows if downwards else reversed(rows):
            keys = {
                id(cell): _barycenter(cell, cell.up if downwards else cell.down) for cell in row
            }
            row.sort(key=lambda cell: keys[id(cell)])
            for at, cell in enumerate(row):
                cell.at = at
        crossings = _crossings(rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    rows[:] = best
    _number(rows)


def _number(rows: Iterable[Iterable[_Cell]]) -> None:
    for row in rows:
        for at, cell in enumerate(row):
            cell.at = at


def _barycenter(cell: _Cell, neighbours: Sequence[_Cell]) -> float:
    return sum(other.at for other in neighbours) / len(neighbours) if neighbours else float(cell.at)


def _crossings(rows: Sequence[Sequence[_Cell]]) -> int:
    total = 0
    for row in rows:
        ends = [other for cell in row for other in sorted(lower.at for lower in cell.down)]
        total += sum(ends[j] < ends[i] for i in range(len(ends)) for j in range(i + 1, len(ends)))
    return total


def _place_columns(rows: Sequence[Sequence[_Cell]]) -> None:
    for row in rows:
        _settle(row, [0.0] * len(row))
    for sweep in range(_PLACING_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            both = sweep >= _PLACING_SWEEPS - 4  # at last what is above and below counts
            _settle(row, [_wish(cell, sweep % 2 == 0, both) for cell in row])

    for row in rows:
        _straighten(row)


def _straighten(row: Sequence[_Cell]) -> None:
    """Put what follows one other below it, as far as there is room."""
    for at, cell in enumerate(row):
        if len(cell.up) != 1 or len(cell.up[0].down) != 1:
            continue
        low, high = float("-inf"), float("inf")
        if at:
            low = row[at - 1].x + (row[at - 1].width + cell.width) / 2 + COLUMN_GAP
        if at + 1 < len(row):
            high = row[at + 1].x - (row[at + 1].width + cell.width) / 2 - COLUMN_GAP
        cell.x = max(low, min(high, cell.up[0].x)) if low <= high else cell.x


def _wish(cell: _Cell, downwards: bool, both: bool) -> float:
    near = [*cell.up, *cell.down] if both else cell.up if downwards else cell.down
    return sum(other.x for other in near) / len(near) if near else cell.x


def _settle(row: Sequence[_Cell], wishes: Sequence[float]) -> None:
    """Put the cells of a row as close to where they want to be as their order and widths allow."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + COLUMN_GAP)
    pools: list[tuple[float, float, int]] = []  # sum of weighted wishes, weight, number of cells
    for cell, wish, offset in zip(row, wishes, offsets, strict=True):
        weight = 2.0 if cell.box is None else 1.0  # straight edges look calm
        pools.append((weight * (wish - offset), weight, 1))
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            last, before = pools.pop(), pools.pop()
            pools.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
    middles = [total / weight for total, weight, number in pools for _ in range(number)]
    for cell, middle, offset in zip(row, middles, offsets, strict=True):
        cell.x = round(middle + offset, 2)


def _paths(
    cells: Sequence[_Cell],
    chains: Sequence[Sequence[_Cell]],
    sizes: Sequence[tuple[float, float]],
    rows: Sequence[tuple[float, float]],
    left: float,
) -> list[list[Point]]:
    """Return the points of each edge: down out of its box, straight through every row, down into the next box."""
    leaving = _ports(cells, chains, first=True)
    arriving = _ports(cells, chains, first=False)
    paths = []
    for at, chain in enumerate(chains):
        begin, end = chain[0], chain[-1]
        height = sizes[begin.box][1] if begin.box is not None else 0.0
        points = [(leaving[at], rows[begin.rank][0] + height), (leaving[at], rows[begin.rank][1])]
        for cell in chain[1:-1]:
            points += [(cell.x, rows[cell.rank][0]), (cell.x, rows[cell.rank][1])]
        points.append((arriving[at], rows[end.rank][0]))
        paths.append([(round(x - left, 2), round(y, 2)) for x, y in points])
    return paths


def _ports(
    cells: Sequence[_Cell], chains: Sequence[Sequence[_Cell]], *, first: bool
) -> dict[int, float]:
    """Return where each edge leaves (or reaches) its box: side by side, in the order of where they come from."""
    found: dict[int, float] = {}
    for cell in cells:
        mine = [at for at, chain in enumerate(chains) if chain[0 if first else -1] is cell]
        mine.sort(key=lambda at: (chains[at][1 if first else -2].x, at))
        for place, at in enumerate(mine):
            found[at] = cell.x + cell.width * 0.7 * ((place + 1) / (len(mine) + 1) - 0.5)
    return found
