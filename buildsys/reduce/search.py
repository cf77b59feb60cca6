"""Search for the fewest nodes of a graph that still fail."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from buildsys.errors import CheckFailed

WRONG, CRASH = "wrong", "crash"
FACTS = "part.json"  # of a trial, even if the library crashes
_ALIKE = 0.5  # share of words that two messages of the same failure have in common
_MOST_TRIALS = 60  # after the slice
_WORD = re.compile(r"[a-z]{3,}")


def smallest_part(count: int, fails: Callable[[Sequence[int]], bool]) -> tuple[int, ...]:
    """Find few nodes that fail; all ``count`` in topological order do.

    Binary search finds the shortest failing prefix, then its shortest failing end. Then halves,
    quarters and single nodes are left out: what they compute becomes an input.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(range(middle)) else (middle, high)
    first, end = 0, high
    while end - first > 1:
        middle = (first + end) // 2
        first, end = (middle, end) if fails(range(middle, high)) else (first, middle)
    nodes, size, trials = [*range(first, high)], (high - first) // 2, 0
    while size and trials < _MOST_TRIALS:
        before = len(nodes)
        for start in range(0, len(nodes), size):
            rest = nodes[:start] + nodes[start + size :]
            trials += 1
            if rest and len(rest) < len(nodes) and fails(rest):
                nodes = rest
                break
        if len(nodes) == before:
            size //= 2
        size = min(size, len(nodes) // 2)
    return tuple(nodes)


def is_same_failure(first: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Compare kinds, and the operators or words of messages."""
    if other is None or first["kind"] != other["kind"]:
        return False
    if first["kind"] in (WRONG, CRASH):
        return True
    operators = [set(failure.get("operators", ())) for failure in (first, other)]
    if all(operators):
        return operators[1] <= operators[0]
    return shares_words(first["text"], other["text"])


def shares_words(message: str, other: str) -> bool:
    """Check whether most words of a message are in another one."""
    words, others = ({*_WORD.findall(text.lower())} for text in (message, other))
    return len(words & others) >= _ALIKE * len(words)


Trial = Mapping[str, Any]  # the figures of ``reduce.stage``
# by case, numbers of nodes (None: all) and what is random
Attempt = Callable[[str, Sequence[int] | None, Sequence[str]], Trial]


@dataclass(frozen=True)
class Reduced:
    """The smallest part found with the same failure."""

    case: str
    failure: Trial  # of the whole graph
    total: int  # nodes of the whole graph
    nodes: tuple[int, ...] | None  # None: no part of it fails
    random: tuple[str, ...]  # of the weights and inputs
    trials: int
    last: Trial  # the trial of the part


def reduce_failure(cases: Sequence[str], attempt: Attempt) -> Reduced:
    """Reduce the first failing case. Raises: CheckFailed: no case fails."""
    for case in cases:
        whole = attempt(case, None, ())
        if whole["failure"]:
            break
    else:
        problem = "nothing to reduce: the graph builds and is right in every case"
        hint = "sizes are fixed here: a failure of dynamic ones, or by chance, cannot be reduced"
        raise CheckFailed(problem, hint)
    count, seen = len(whole["nodes"]), dict[tuple[object, ...], Trial]()

    def try_part(nodes: Sequence[int], random: tuple[str, ...] = ()) -> bool:
        key = (*nodes, random)
        if key not in seen:
            seen[key] = attempt(case, [*nodes], random)
        return is_same_failure(whole["failure"], seen[key]["failure"])

    if not try_part(range(count)):
        return Reduced(case, whole["failure"], count, None, (), len(seen) + 1, whole)
    nodes = smallest_part(count, try_part)
    choices = (("weights", "inputs"), ("weights",), ("inputs",), ())
    random = next(choice for choice in choices if try_part(nodes, choice))
    last = attempt(case, nodes, random)  # its files are the last ones written
    return Reduced(case, whole["failure"], count, nodes, random, len(seen) + 1, last)
