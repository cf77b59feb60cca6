from __future__ import annotations

from collections.abc import Sequence

import pytest

from buildsys.stages.localize.search import Found, find_exclusion

NODES = [f"n{number:02d}" for number in range(40)]


class Check:
    """A check that passes if all ``needed`` nodes are excluded."""

    def __init__(self, *needed: str, most: int = 1000) -> None:
        self.needed, self.most = set(needed), most
        self.asked: list[tuple[str, ...]] = []

    def passes(self, nodes: Sequence[str]) -> bool:
        self.asked.append(tuple(nodes))
        return self.needed <= set(nodes)

    def in_time(self) -> bool:
        return len(self.asked) < self.most

    def find(self, certain: Sequence[str] = (), ranked: Sequence[str] = NODES) -> Found:
        return find_exclusion(certain, lambda: ranked, self.passes, self.in_time)


@pytest.mark.parametrize(
    "needed", [["n00"], ["n39"], ["n03", "n04"], ["n00", "n17", "n31"], NODES[:9], NODES]
)
def test_exactly_the_needed_nodes_are_found(needed: list[str]) -> None:
    assert Check(*needed).find() == Found(tuple(needed), is_smallest=True)


def test_certain_nodes_are_enough_or_others_are_added_and_unneeded_ones_left_out() -> None:
    enough = Check("n05")
    assert enough.find(certain=["n04", "n05"]) == Found(("n05",), is_smallest=True)
    assert Check("n05", "n20").find(certain=["n04", "n05"]) == Found(("n05", "n20"), True)


def test_a_good_order_saves_trials() -> None:
    check = Check("n00", "n01")
    check.find()
    assert len(check.asked) <= 6


def test_the_search_is_the_same_every_time() -> None:
    first, second = Check("n07", "n30"), Check("n07", "n30")
    assert first.find() == second.find()
    assert first.asked == second.asked


def test_no_list_is_found_where_none_passes() -> None:
    assert Check("other").find() == Found(None)
    assert Check("other").find(ranked=[]) == Found(None)


@pytest.mark.parametrize("most", range(1, 40, 3))
def test_a_list_found_in_time_passes_even_if_it_is_not_the_smallest(most: int) -> None:
    check = Check("n07", "n30", most=most)
    found = check.find()
    assert found.nodes is None or check.needed <= set(found.nodes)
    assert not found.is_smallest or found.nodes == ("n07", "n30")
