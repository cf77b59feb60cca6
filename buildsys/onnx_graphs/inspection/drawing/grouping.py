"""Grouping of nodes into few boxes: runs, branches and repeated blocks.

The reduction is that of series-parallel graphs (Valdes, Tarjan, Lawler 1982): consecutive nodes
become a series, branches between the same two nodes become one unit. Each remaining series is drawn
as a column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from buildsys.onnx_graphs.inspection.plain_graph import TIMES, PlainNode

PLAIN_LIMIT = 60  # nodes; so many are drawn without grouping
_BOX_LIMIT = 60
_LONGEST_RUN = 8  # nodes in the box of a run
_LARGE_SHARE = 0.2  # of all nodes; larger branches are drawn
_LONGEST_OUTLINE = 110  # characters
_SHOWN_OPERATORS = 7


@dataclass(frozen=True, eq=False)
class Parallel:
    """Branches from one node to another; ``skip``: a tensor also bypasses them."""

    branches: tuple[tuple[Item, ...], ...]
    skip: bool


Item = PlainNode | Parallel


@dataclass(frozen=True, eq=False)
class Box:
    """One box: ``count`` equal blocks of consecutive items."""

    items: tuple[Item, ...]
    count: int = 1

    @property
    def pattern(self) -> tuple[Item, ...]:
        """The first block."""
        return self.items[: len(self.items) // self.count]

    @property
    def nodes(self) -> list[PlainNode]:
        """All nodes of the box."""
        return list(all_nodes(self.items))


@dataclass(eq=False)
class _Unit:
    items: list[Item]
    order: int
    before: dict[_Unit, None] = field(default_factory=dict)
    after: dict[_Unit, None] = field(default_factory=dict)


def group(
    nodes: Sequence[PlainNode],
    edges: Iterable[tuple[PlainNode, PlainNode]],
    fixed: Iterable[PlainNode] = (),
    form: Callable[[PlainNode], str] = lambda _: "",
) -> list[list[Box]]:
    """Return columns of boxes. Within a column, every box leads to the next.

    ``fixed`` nodes (the ends of the picture) stay single boxes; few nodes are not grouped at all.
    Blocks count as repeated if their operators and the ``form`` of their nodes are equal.
    """
    if len(nodes) <= PLAIN_LIMIT:
        return [[Box((node,))] for node in nodes]
    units = {node: _Unit([node], order) for order, node in enumerate(nodes)}
    for begin, end in edges:
        _tie(units[begin], units[end])
    alone = {units[node] for node in fixed}
    left = list(units.values())
    changed = True
    while changed:
        changed = _join_series(left, alone)
        changed = _join_branches(left, alone) or changed
    _open_large(left, alone, len(nodes))
    return [boxes_of(unit.items, form) for unit in sorted(left, key=lambda unit: unit.order)]


def all_nodes(items: Iterable[Item]) -> Iterator[PlainNode]:
    """Yield the nodes of items, including those of branches."""
    for item in items:
        if isinstance(item, Parallel):
            for branch in item.branches:
                yield from all_nodes(branch)
        else:
            yield item


def _tie(begin: _Unit, end: _Unit) -> None:
    begin.after[end] = None
    end.before[begin] = None


def _join_series(units: list[_Unit], alone: set[_Unit]) -> bool:
    gone: set[_Unit] = set()
    for unit in units:
        while unit not in gone and unit not in alone and len(unit.after) == 1:
            (after,) = unit.after
            if after in alone or len(after.before) != 1:
                break
            unit.items += after.items
            unit.after = after.after
            for other in unit.after:
                other.before = {unit if one is after else one: None for one in other.before}
            gone.add(after)
    units[:] = [unit for unit in units if unit not in gone]
    return bool(gone)


def _join_branches(units: list[_Unit], alone: set[_Unit]) -> bool:
    between: dict[tuple[_Unit, _Unit], list[_Unit]] = {}
    for unit in units:
        if unit not in alone and len(unit.before) == len(unit.after) == 1:
            between.setdefault((next(iter(unit.before)), next(iter(unit.after))), []).append(unit)
    gone: set[_Unit] = set()
    changed = False
    for (begin, end), branches in between.items():
        skip = end in begin.after
        if len(branches) < 2 and not skip:
            continue
        first, *others = sorted(branches, key=lambda unit: unit.order)
        first.items = [Parallel(tuple(tuple(unit.items) for unit in (first, *others)), skip)]
        for other in others:
            del begin.after[other], end.before[other]
            gone.add(other)
        if skip:
            del begin.after[end], end.before[begin]
        changed = True
    units[:] = [unit for unit in units if unit not in gone]
    return changed


def _open_large(units: list[_Unit], alone: set[_Unit], total: int) -> None:
    """Open units with too many nodes for one box."""
    limit = max(PLAIN_LIMIT / 2, _LARGE_SHARE * total)
    waiting = list(units)
    while waiting and len(units) < _BOX_LIMIT:
        unit = waiting.pop(0)
        large = (
            at
            for at, item in enumerate(unit.items)
            if isinstance(item, Parallel) and len(list(all_nodes([item]))) > limit
        )
        at = next(large, None)
        if at is None or unit in alone:
            continue
        pieces = _opened(unit, at)
        units.remove(unit)
        units += pieces
        waiting += pieces


def _opened(unit: _Unit, at: int) -> list[_Unit]:
    """Split a unit into the branches of item ``at`` and the rest."""
    item = unit.items[at]
    assert isinstance(item, Parallel)
    pieces = [
        _Unit(items, unit.order + place)
        for place, items in enumerate((unit.items[:at], unit.items[at + 1 :]))
    ]
    begins, ends = (dict.fromkeys(side) for side in (unit.before, unit.after))
    for other in begins:
        del other.after[unit]
    for other in ends:
        del other.before[unit]
    if pieces[0].items:
        for other in begins:
            _tie(other, pieces[0])
        begins = {pieces[0]: None}
    if pieces[1].items:
        for other in ends:
            _tie(pieces[1], other)
        ends = {pieces[1]: None}
    branches = [_Unit(list(branch), unit.order) for branch in item.branches]
    for begin in begins:
        for end in ends:
            for branch in branches:
                _tie(begin, branch)
                _tie(branch, end)
            if item.skip:
                _tie(begin, end)
    return [*(piece for piece in pieces if piece.items), *branches]


def boxes_of(items: Sequence[Item], form: Callable[[PlainNode], str] = lambda _: "") -> list[Box]:
    """Return a series as boxes.

    One or two nodes after branches join these.
    """
    blocks: list[tuple[Item, ...]] = []  # branches with their joining node, other nodes alone
    for item in items:
        after_branches = blocks and len(blocks[-1]) == 1 and isinstance(blocks[-1][0], Parallel)
        if after_branches and isinstance(item, PlainNode):
            blocks[-1] += (item,)
        else:
            blocks.append((item,))
    found: list[Box] = []
    for is_single, run in groupby(
        _repeats(blocks, form),
        key=lambda box: isinstance(box.items[0], PlainNode) and len(box.items) == 1,
    ):
        if not is_single:
            found += run
            continue
        items = tuple(box.items[0] for box in run)
        last = found[-1] if found else None
        if last and last.count == 1 and isinstance(last.items[0], Parallel) and len(items) <= 2:
            found[-1] = Box((*last.items, *items))
        else:
            starts = range(0, len(items), _LONGEST_RUN)
            found += [Box(items[at : at + _LONGEST_RUN]) for at in starts]
    return found


def _repeats(blocks: list[tuple[Item, ...]], form: Callable[[PlainNode], str]) -> list[Box]:
    """Return boxes with the largest repetition as one, recursively."""
    signatures = [
        f"{outline(block, longest=0)}{list(map(form, all_nodes(block)))}" for block in blocks
    ]
    best = (0, False, 0, 0)  # nodes, starts with branches, shortest, earliest
    chosen: tuple[int, int, int] | None = None  # begin, length, count
    for length in range(1, len(blocks) // 2 + 1):
        for begin in range(len(blocks) - 2 * length + 1):
            count, pattern = 1, blocks[begin : begin + length]
            signature = signatures[begin : begin + length]
            while signatures[begin + count * length :][:length] == signature:
                count += 1
            has_branches = any(isinstance(block[0], Parallel) for block in pattern)
            # else no more than a run such as Reshape → Reshape
            if count < 2 or not (has_branches or length > 1 or count > 3):
                continue
            size = count * sum(1 for block in pattern for _ in all_nodes(block))
            rank = (size, isinstance(pattern[0][0], Parallel), -length, -begin)
            if chosen is None or rank > best:
                best, chosen = rank, (begin, length, count)
    if chosen is None:
        return [Box(block) for block in blocks]
    begin, length, count = chosen
    end = begin + length * count
    items = tuple(item for block in blocks[begin:end] for item in block)
    return [*_repeats(blocks[:begin], form), Box(items, count), *_repeats(blocks[end:], form)]


def outline(items: Sequence[Item], longest: int = _LONGEST_OUTLINE) -> str:
    """Return e.g. ``(Conv → Relu ∥ skip) → Add``, or operator counts."""
    parts = []
    for item in items:
        if isinstance(item, Parallel):
            texts = [outline(branch, longest=0) for branch in item.branches] + ["skip"] * item.skip
            parts.append(f"({' ∥ '.join(texts)})")
        else:
            parts.append(item.operator)
    runs = [(part, len(list(run))) for part, run in groupby(parts)]
    text = " → ".join(f"{part} {TIMES}{count}" if count > 1 else part for part, count in runs)
    if not longest or len(text) <= longest:
        return text
    counts = Counter(node.operator for node in all_nodes(items)).most_common()
    shown = [f"{name} {TIMES}{n}" if n > 1 else name for name, n in counts[:_SHOWN_OPERATORS]]
    return ", ".join(shown + ["…"] * (len(counts) > _SHOWN_OPERATORS))
