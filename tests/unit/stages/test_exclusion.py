from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buildsys.stages.search.stage import Exclusion, find_exclusion

NODES = [f"n{number:02d}" for number in range(40)]


class Check:
    """A check that passes if all ``needed`` nodes are excluded."""

    def __init__(self, *needed: str) -> None:
        self.needed = set(needed)
        self.asked: list[tuple[str, ...]] = []

    def passes(self, nodes: Sequence[str]) -> bool:
        self.asked.append(tuple(nodes))
        return self.needed <= set(nodes)

    def find(self, order: Sequence[str] = NODES, certain: int = 0) -> Exclusion:
        return find_exclusion(order, certain, self.passes, lambda: len(self.asked) < 1000)


@pytest.mark.parametrize(
    "needed", [["n00"], ["n39"], ["n03", "n04"], ["n00", "n17", "n31"], NODES[:9], NODES]
)
def test_exactly_the_needed_nodes_are_found(needed: list[str]) -> None:
    assert Check(*needed).find() == Exclusion(tuple(needed), is_smallest=True)


def test_certain_nodes_are_enough_or_others_are_added_and_unneeded_ones_left_out() -> None:
    order = ["n04", "n05", *NODES[:4], *NODES[6:]]
    enough = Check("n05")
    assert enough.find(order, 2) == Exclusion(("n05",), is_smallest=True)
    assert enough.asked[0] == ("n04", "n05")
    assert Check("n05", "n20").find(order, 2) == Exclusion(("n05", "n20"), True)


def test_a_good_order_saves_trials() -> None:
    check = Check("n00", "n01")
    check.find()
    assert len(check.asked) <= 6


def test_no_list_is_found_where_none_passes() -> None:
    assert Check("other").find() == Exclusion(None)
    assert Check("other").find([]) == Exclusion(None)


@st.composite
def _checks(draw: st.DrawFn) -> tuple[list[str], int, frozenset[frozenset[str]], int]:
    """Return an order, a number of certain nodes, sets of which one must be excluded, a limit."""
    names = NODES[: draw(st.integers(1, 12))]
    subsets = st.frozensets(st.sampled_from(names), min_size=1)
    enough = draw(st.frozensets(subsets, max_size=3))
    return draw(st.permutations(names)), draw(st.integers(0, 3)), enough, draw(st.integers(0, 60))


@settings(max_examples=100, deadline=None)
@given(_checks())
def test_a_found_list_passes_within_few_trials_more_and_no_node_of_a_smallest_one_can_go(
    drawn: tuple[list[str], int, frozenset[frozenset[str]], int],
) -> None:
    order, certain, enough, most = drawn
    trials: list[frozenset[str]] = []

    def passes(nodes: Sequence[str]) -> bool:
        trials.append(frozenset(nodes))
        return any(one <= set(nodes) for one in enough)

    exclusion = find_exclusion(order, certain, passes, lambda: len(trials) < most)
    assert len(trials) <= max(most, 0) + 3  # one of each phase, whatever the limit
    if exclusion.nodes is None:
        assert not enough or len(trials) >= most
        return
    assert any(one <= set(exclusion.nodes) for one in enough)
    assert len(set(exclusion.nodes)) == len(exclusion.nodes)
    if exclusion.is_smallest and len(exclusion.nodes) > 1:
        rests = (set(exclusion.nodes) - {node} for node in exclusion.nodes)
        assert not any(one <= rest for rest in rests for one in enough)
