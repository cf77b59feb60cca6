"""Repeated blocks of nodes: consecutive nodes with equal labels and connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST_BLOCK = 400  # nodes
_FEWEST_SAVED = 4  # nodes; a shorter repetition is drawn as it is

Sources = Sequence[tuple[int | str, ...]]  # per node: numbers of producers, names of other inputs


@dataclass(frozen=True)
class Block:
    """``count`` equal runs of consecutive nodes; ``items`` are the first of them."""

    items: tuple[int | Block, ...]
    count: int


class Folding:
    """Nodes with repeated blocks drawn once."""

    def __init__(self, labels: Sequence[str], sources: Sources) -> None:
        self._labels, self._sources = labels, sources
        self._last_reader = list(range(len(labels)))
        for reader, producers in enumerate(sources):
            for producer in producers:
                if isinstance(producer, int):
                    self._last_reader[producer] = reader
        self.drawn = list(range(len(labels)))  # the drawn node that stands for each node
        self.items = self._fold(0, len(labels))

    def _fold(self, begin: int, end: int) -> list[int | Block]:
        items: list[int | Block] = []
        while begin < end:
            length, count = self._repeats_at(begin, end)
            if count == 1:
                items.append(begin)
                begin += 1
                continue
            items.append(Block(tuple(self._fold(begin, begin + length)), count))
            stop = begin + length * count
            for node in range(begin + length, stop):
                self.drawn[node] = self.drawn[node - length]
            begin = stop
        return items

    def _repeats_at(self, begin: int, end: int) -> tuple[int, int]:
        """Find the repetition that saves most nodes: its length and count."""
        best, most_saved = (1, 1), _FEWEST_SAVED - 1
        for length in range(1, min((end - begin) // 2, _LONGEST_BLOCK) + 1):
            stop = begin
            while stop < end - length and self._is_equal(stop, length):
                stop += 1
            count = (stop - begin) // length + 1
            saved = (count - 1) * length
            is_later_better = (stop - begin) % length and not self._is_closed(begin, length)
            if saved > most_saved and not is_later_better:
                best, most_saved = (length, count), saved
        return best

    def _is_equal(self, node: int, length: int) -> bool:
        if self._labels[node] != self._labels[node + length]:
            return False
        first, second = self._sources[node], self._sources[node + length]
        return len(first) == len(second) and all(
            a == b or (isinstance(a, int) and isinstance(b, int) and b - a == length)
            for a, b in zip(first, second, strict=True)
        )

    def _is_closed(self, begin: int, length: int) -> bool:
        """Check that only the last node of a block is read outside."""
        last = begin + length - 1
        return all(self._last_reader[node] <= last for node in range(begin, last))
