"""Make few boxes of many nodes: runs, parallel branches and repeated blocks become one box each.

A graph is reduced as series-parallel graphs are (Valdes, Tarjan, Lawler 1982): nodes that follow each other become a
series, branches between the same two nodes become one unit. What is left is drawn, each series as a column of boxes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from buildsys.onnx_graphs.inspection.plain_graph import TIMES, PlainNode

PLAIN_LIMIT = 60  # nodes; up to this many are drawn one by one
_BOX_LIMIT = 60
_LONGEST_RUN = 8  # nodes of a box that is only a run
_LARGE_SHARE = 0.2  # of all nodes: branches with more are drawn, not put into a box
_LONGEST_OUTLINE = 110  # characters
_SHOWN_OPERATORS = 7


@dataclass(frozen=True, eq=False)
class Parallel:
    """Branches from one node to another; ``skip``: a tensor also goes past them."""

    branches: tuple[tuple[Item, ...], ...]
    skip: bool


Item = PlainNode | Parallel


@dataclass(frozen=True, eq=False)
class Box:
    """One box: items that follow each other, ``count`` times in a row."""

    items: tuple[Item, ...]
    count: int = 1
    pattern: tuple[Item, ...] = ()  # what is repeated

    @property
    def nodes(self) -> list[PlainNode]:
        """All nodes in it."""
        return list(all_nodes(self.items))


@dataclass(eq=False)
class _Unit:
    items: list[Item]
    order: int
    before: dict[_Unit, None] = field(default_factory=dict)
    behind: dict[_Unit, None] = field(default_factory=dict)


def _no_form(node: PlainNode) -> str:
    del node
    return ""


def group(
    nodes: Sequence[PlainNode],
    edges: Iterable[tuple[PlainNode, PlainNode]],
    fixed: Iterable[PlainNode] = (),
    form: Callable[[PlainNode], str] = _no_form,
) -> list[list[Box]]:
    """Return columns of boxes: each column is one series, in which every box leads to the next.

    Nodes that are ``fixed`` (ends of the picture) stay boxes of their own. Few nodes are not grouped at all. A block
    repeats itself where its operators do, and what ``form`` tells of each node.
    """
    if len(nodes) <= PLAIN_LIMIT:
        return [[Box((node,))] for node in nodes]
    units = {node: _Unit([node], order) for order, node in enumerate(nodes)}
    for begin, end in edges:
        _tie(units[begin], units[end])
    alone = {units[node] for node in fixed}
    left = _reduced(list(units.values()), alone)
    _open_large(left, alone, len(nodes))
    return [boxes_of(unit.items, form) for unit in sorted(left, key=lambda unit: unit.order)]


def all_nodes(items: Iterable[Item]) -> Iterator[PlainNode]:
    """Yield the nodes of items, those of branches included."""
    for item in items:
        if isinstance(item, Parallel):
            for branch in item.branches:
                yield from all_nodes(branch)
        else:
            yield item


def _tie(begin: _Unit, end: _Unit) -> None:
    begin.behind[end] = None
    end.before[begin] = None


def _reduced(units: list[_Unit], alone: set[_Unit]) -> list[_Unit]:
    changed = True
    while changed:
        changed = _join_series(units, alone)
        changed = _join_branches(units, alone) or changed
    return units


def _join_series(units: list[_Unit], alone: set[_Unit]) -> bool:
    gone: set[_Unit] = set()
    for unit in units:
        while unit not in gone and unit not in alone and len(unit.behind) == 1:
            (after,) = unit.behind
            if after in alone or len(after.before) != 1:
                break
            unit.items += after.items
            unit.behind = after.behind
            for other in unit.behind:
                other.before = {unit if one is after else one: None for one in other.before}
            gone.add(after)
    units[:] = [unit for unit in units if unit not in gone]
    return bool(gone)


def _join_branches(units: list[_Unit], alone: set[_Unit]) -> bool:
    between: dict[tuple[_Unit, _Unit], list[_Unit]] = {}
    for unit in units:
        if unit not in alone and len(unit.before) == len(unit.behind) == 1:
            between.setdefault((next(iter(unit.before)), next(iter(unit.behind))), []).append(unit)
    gone: set[_Unit] = set()
    changed = False
    for (begin, end), branches in between.items():
        skip = end in begin.behind
        if len(branches) < 2 and not skip:
            continue
        first, *others = sorted(branches, key=lambda unit: unit.order)
        first.items = [Parallel(tuple(tuple(unit.items) for unit in (first, *others)), skip)]
        for other in others:
            del begin.behind[other], end.before[other]
            gone.add(other)
        if skip:
            del begin.behind[end], end.before[begin]
        changed = True
    units[:] = [unit for unit in units if unit not in gone]
    return changed


def _open_large(units: list[_Unit], alone: set[_Unit], total: int) -> None:
    """Draw the branches of what would be most of the picture in one box."""
    waiting = list(units)
    while waiting and len(units) < _BOX_LIMIT:
        unit = waiting.pop(0)
        at = next((at for at, item in enumerate(unit.items) if _is_large(item, total)), None)
        if at is None or unit in alone:
            continue
        pieces = _opened(unit, at)
        units.remove(unit)
        units += pieces
        waiting += pieces


def _is_large(item: Item, total: int) -> bool:
    return isinstance(item, Parallel) and sum(1 for _ in all_nodes([item])) > max(
        PLAIN_LIMIT / 2, _LARGE_SHARE * total
    )


def _opened(unit: _Unit, at: int) -> list[_Unit]:
    """Replace a unit by what comes before its item ``at``, the branches of that, and what comes behind."""
    item = unit.items[at]
    assert isinstance(item, Parallel)
    pieces = [
        _Unit(items, unit.order + place)
        for place, items in enumerate((unit.items[:at], unit.items[at + 1 :]))
    ]
    begins, ends = (dict.fromkeys(side) for side in (unit.before, unit.behind))
    for other in begins:
        del other.behind[unit]
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


def boxes_of(items: Sequence[Item], form: Callable[[PlainNode], str] = _no_form) -> list[Box]:
    """Return a series as boxes: what is repeated, then branches with the node where they meet, then runs."""
    return _runs(_repeats(_blocks(items), form))


Block = tuple[Item, ...]


def _blocks(items: Sequence[Item]) -> list[Block]:
    """Return branches together with the node where they meet, all other nodes alone."""
    blocks: list[Block] = []
    rest = list(items)
    while rest:
        meets = (
            isinstance(rest[0], Parallel) and len(rest) > 1 and not isinstance(rest[1], Parallel)
        )
        length = 2 if meets else 1
        blocks.append(tuple(rest[:length]))
        del rest[:length]
    return blocks


def _repeats(blocks: list[Block], form: Callable[[PlainNode], str]) -> list[Box]:
    """Return boxes in which the largest stretch that repeats itself is one; before and behind it the same again."""
    signatures = [
        f"{outline(block, longest=0)}{[form(node) for node in all_nodes(block)]}"
        for block in blocks
    ]
    best = (
        0,
        False,
        0,
        0,
        0,
    )  # nodes, begins with branches, earliest, shortest; then begin, length, count
    chosen: tuple[int, int, int] | None = None
    for length in range(1, len(blocks) // 2 + 1):
        for begin in range(len(blocks) - 2 * length + 1):
            count = _count_repeats(signatures, begin, length)
            pattern = blocks[begin : begin + length]
            if count < 2 or not _is_worth_it(pattern, count):
                continue
            size = count * sum(1 for block in pattern for _ in all_nodes(block))
            rank = (size, isinstance(pattern[0][0], Parallel), -length, -begin, 0)
            if chosen is None or rank > best:
                best, chosen = rank, (begin, length, count)
    if chosen is None:
        return [Box(block) for block in blocks]
    begin, length, count = chosen
    end = begin + length * count
    items = tuple(item for block in blocks[begin:end] for item in block)
    pattern_items = tuple(item for block in blocks[begin : begin + length] for item in block)
    return [
        *_repeats(blocks[:begin], form),
        Box(items, count, pattern_items),
        *_repeats(blocks[end:], form),
    ]


def _count_repeats(signatures: Sequence[str], begin: int, length: int) -> int:
    count = 1
    pattern = signatures[begin : begin + length]
    while signatures[begin + count * length : begin + (count + 1) * length] == pattern:
        count += 1
    return count


def _is_worth_it(pattern: Sequence[Block], count: int) -> bool:
    """Tell whether a repetition is more than a run such as Reshape → Reshape."""
    return any(isinstance(block[0], Parallel) for block in pattern) or len(pattern) > 1 or count > 3


def _runs(boxes: Sequence[Box]) -> list[Box]:
    """Join single nodes that follow each other; a few behind branches go with these."""
    found: list[Box] = []
    run: list[Item] = []

    def finish() -> None:
        is_few = (
            len(run) <= 2
            and found
            and found[-1].count == 1
            and isinstance(found[-1].items[0], Parallel)
        )
        if run and is_few:
            found[-1] = Box((*found[-1].items, *run))
        elif run:
            found.extend(
                Box(tuple(run[at : at + _LONGEST_RUN])) for at in range(0, len(run), _LONGEST_RUN)
            )
        run.clear()

    for box in boxes:
        if box.count == 1 and len(box.items) == 1 and not isinstance(box.items[0], Parallel):
            run.append(box.items[0])
        else:
            finish()
            found.append(box)
    finish()
    return found


def outline(items: Sequence[Item], longest: int = _LONGEST_OUTLINE) -> str:
    """Return items in words, e.g. ``(Conv → Relu ∥ skip) → Add``; long ones by the number of each operator."""
    parts = [(_branches(item) if isinstance(item, Parallel) else item.operator) for item in items]
    runs = [(part, len(list(run))) for part, run in groupby(parts)]
    text = " → ".join(f"{part} {TIMES}{count}" if count > 1 else part for part, count in runs)
    if not longest or len(text) <= longest:
        return text
    counts = Counter(node.operator for node in all_nodes(items)).most_common()
    shown = ", ".join(
        f"{operator} {TIMES}{count}" if count > 1 else operator
        for operator, count in counts[:_SHOWN_OPERATORS]
    )
    return shown + (", …" if len(counts) > _SHOWN_OPERATORS else "")


def _branches(item: Parallel) -> str:
    texts = [outline(branch, longest=0) for branch in item.branches] + ["skip"] * item.skip
    return f"({' ∥ '.join(texts)})"
