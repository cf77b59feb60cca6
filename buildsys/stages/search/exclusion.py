"""Search for a small set of nodes to keep in fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Passes = Callable[[Sequence[str]], bool]
MayGoOn = Callable[[], bool]


@dataclass(frozen=True)
class Exclusion:
    """Nodes that make the check pass; None without any."""

    nodes: tuple[str, ...] | None
    is_smallest: bool = False  # without any one of them the check fails


def find_exclusion(
    certain: Sequence[str], ranked: Callable[[], Sequence[str]], passes: Passes, may_go_on: MayGoOn
) -> Exclusion:
    """Return nodes whose exclusion passes, none of which can be left out.

    ``certain`` are excluded first. If that does not pass, nodes of ``ranked`` follow, the most
    suspicious first: 1, 2, 4, … until it passes, then by bisection the fewest of them. At last
    halves, quarters and single nodes are tried without, the least suspicious first. The result
    depends on the order only, unless it has to end early.
    """
    nodes = list(certain)
    if not nodes or not passes(nodes):
        order = [node for node in ranked() if node not in certain]
        low, high = 0, 1
        while high < len(order) and not passes([*certain, *order[:high]]):
            if not may_go_on():
                return Exclusion(None)
            low, high = high, min(2 * high, len(order))
        while high - low > 1 and may_go_on():
            middle = (low + high) // 2
            if passes([*certain, *order[:middle]]):
                high = middle
            else:
                low = middle
        nodes = [*certain, *order[:high]]
        if high >= len(order) and not passes(nodes):  # with all of them nothing is converted
            return Exclusion(None)
    return _reduced(nodes, passes, may_go_on)


def _reduced(nodes: list[str], passes: Passes, may_go_on: MayGoOn) -> Exclusion:
    size = max(len(nodes) // 2, 1)
    while may_go_on():
        before = len(nodes)
        for start in range(len(nodes) - size, -size, -size):
            rest = nodes[: max(start, 0)] + nodes[max(start, 0) + size + min(start, 0) :]
            if rest and may_go_on() and passes(rest):
                nodes = rest
        if size == 1 and (len(nodes) == before or len(nodes) == 1):
            return Exclusion(tuple(nodes), may_go_on())
        size = size if size == 1 else size // 2
    return Exclusion(tuple(nodes))
