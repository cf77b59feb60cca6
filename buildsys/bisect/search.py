"""Search among differences for the cause of a bad result.

Differences are applied in one order, so a prefix of them is the state of a half-done change, and
binary search takes log₂ n tests to the one that turns the result. Applied alone, it must be bad
too, and all others without it good. If it is good alone or does not build, it needs earlier ones:
the same search finds them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

GOOD, BAD, UNRESOLVED = "good", "bad", "unresolved"
_SKIPS = 6  # states without a verdict between two decided ones, such as those that do not build
_MOST_GROUPS = 5  # that are bad only together
_RETRIES = 4  # after contradictions of noisy verdicts


class Answer(NamedTuple):
    """The verdict on one state."""

    verdict: str  # GOOD | BAD | UNRESOLVED
    confidence: float = 1.0


class Cause(NamedTuple):
    """Numbers of the differences that make the result bad."""

    groups: tuple[tuple[int, ...], ...]  # bad only together; a group could not be divided
    is_sufficient: bool  # bad when applied alone
    is_necessary: bool  # good when everything else is applied
    confidence: float  # the product over all tests


def find_boundary(
    high: int, ask: Callable[[int], str], prefers: Callable[[int], bool] = lambda _: False
) -> tuple[int, int]:
    """Find the last good and the first bad prefix; 0 is good, ``high`` bad.

    Prefixes without a verdict are skipped. Those that ``prefers`` accepts are cheaper to test.
    """
    low, skipped = 0, set[int]()
    while True:
        between = [place for place in range(low + 1, high) if place not in skipped]
        if not between or len(skipped) > _SKIPS:
            return low, high
        middle = (low + high) / 2
        quarter = (high - low) / 4
        cheap = [p for p in between if prefers(p) and low + quarter <= p <= high - quarter]
        place = min(cheap or between, key=lambda place: abs(place - middle))
        verdict = ask(place)
        if verdict == BAD:
            high = place
        elif verdict == GOOD:
            low = place
        else:
            skipped.add(place)


class CauseSearch:
    """One search; ``test`` gets the numbers of the differences to apply, in order."""

    def __init__(self, count: int, test: Callable[[Sequence[int]], Answer]) -> None:
        self._count = count
        self._test = test
        self._retries = _RETRIES
        self.answers: dict[frozenset[int], Answer] = {}

    def run(self, none: Answer, whole: Answer) -> Cause:
        """Find the cause; ``none`` and ``whole`` are the verdicts without and with everything."""
        everything = frozenset(range(self._count))
        self.answers |= {frozenset(): none, everything: whole}
        while True:
            groups = self._find()
            cause = frozenset(chain.from_iterable(groups))
            others = everything - cause
            alone, without = self._ask(cause), self._ask(others)
            if {BAD, GOOD} == {alone, without} or not self._changes_again((cause, others)):
                break
        confidence = math.prod(answer.confidence for answer in self.answers.values())
        return Cause(tuple(groups), alone == BAD, without == GOOD, confidence)

    def _find(self) -> list[tuple[int, ...]]:
        groups: list[tuple[int, ...]] = []
        low = self._count
        while True:
            cause = frozenset(chain.from_iterable(groups))

            def ask(place: int, cause: frozenset[int] = cause) -> str:
                verdict = self._ask(cause.union(range(place)))
                # with a part of the cause, a state without a verdict lacks the others
                return GOOD if cause and verdict != BAD else verdict

            low, high = find_boundary(low, ask)
            together = cause.union(range(low, high))
            if self._ask(together) == GOOD:
                around = (cause.union(range(high)), cause.union(range(low)), together)
                if self._changes_again(around):
                    groups, low = [], self._count
                    continue
            groups.insert(0, tuple(range(low, high)))
            if low == 0 or self._ask(together) == BAD or len(groups) == _MOST_GROUPS:
                return groups

    def _ask(self, numbers: Iterable[int]) -> str:
        chosen = frozenset(numbers)
        if chosen not in self.answers:
            self.answers[chosen] = self._test(sorted(chosen))
        return self.answers[chosen].verdict

    def _changes_again(self, subsets: Iterable[frozenset[int]]) -> bool:
        """Test noisy states again, as their verdicts contradict each other."""
        noisy = [s for s in subsets if self.answers[s].confidence < 1 and 0 < len(s) < self._count]
        self._retries -= 1
        if self._retries < 0:
            return False
        before = {subset: self.answers[subset].verdict for subset in noisy}
        self.answers |= {subset: self._test(sorted(subset)) for subset in noisy}
        return any(self.answers[subset].verdict != verdict for subset, verdict in before.items())
