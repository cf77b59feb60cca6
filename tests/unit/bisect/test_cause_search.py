"""The search for a cause, without builds."""

import math
import random
from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from buildsys.bisect.search import BAD, GOOD, UNRESOLVED, Answer, Cause, CauseSearch, find_boundary
from buildsys.history.statistics import LOOKS, compare_rounds

COUNT = 40
SURE = Answer(GOOD), Answer(BAD)


def test_200_noisy_histories_name_their_cause_with_few_builds() -> None:
    """The gate's statistics decide from noisy latencies; states in the store are not built."""
    right = 0
    for seed in range(200):
        chance = random.Random(seed)
        cause, store = chance.randrange(COUNT), set[tuple[int, ...]]()
        result, built = search_history(chance, cause, store)
        right += result.groups == ((cause,),) and result.is_sufficient and result.is_necessary
        assert built <= 2 * math.log2(COUNT)
        assert 0.5 < result.confidence < 1
        chance.seed(seed)
        assert chance.randrange(COUNT) == cause
        assert search_history(chance, cause, store) == (result, 0)
    assert right >= 0.95 * 200


def search_history(
    chance: random.Random, cause: int, store: set[tuple[int, ...]]
) -> tuple[Cause, int]:
    """Search for a planted cause; return it with the number of states built."""
    effect, noise, before = chance.uniform(0.05, 0.3), chance.uniform(0, 0.04), len(store)

    def measure(numbers: Sequence[int]) -> Answer:
        store.add(tuple(numbers))
        slower = 1 + effect if cause in numbers else 1.0
        return decide(chance, slower, math.sqrt(1 + effect) - 1, noise)

    result = CauseSearch(COUNT, measure).run(Answer(GOOD, 0.99), Answer(BAD, 0.99))
    return result, len(store) - before


def decide(chance: random.Random, slower: float, tolerance: float, noise: float) -> Answer:
    """Compare with the good build in more and more rounds, as a gate does."""
    rounds: tuple[list[float], list[float]] = ([], [])
    for count, confidence in LOOKS:
        while len(rounds[0]) < count:
            rounds[0].append(math.exp(chance.gauss(0, noise)))
            rounds[1].append(slower * math.exp(chance.gauss(0, noise)))
        change = compare_rounds(*rounds, tolerance, more_is_better=False, confidence=confidence)
        if not change.is_undecided:
            return Answer(BAD if change.is_regression else GOOD, confidence)
    return Answer(UNRESOLVED)


def exact(is_bad: Callable[[set[int]], bool], builds: Callable[[set[int]], bool]) -> Callable:  # type: ignore[type-arg]
    def test(numbers: Sequence[int]) -> Answer:
        chosen = set(numbers)
        return Answer(UNRESOLVED if not builds(chosen) else BAD if is_bad(chosen) else GOOD)

    return test


@given(st.data())
def test_differences_that_act_only_together_are_all_named(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    causes = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=3))
    search = CauseSearch(count, exact(causes.issubset, lambda _: True))
    result = search.run(*SURE)
    assert sorted(result.groups) == [(cause,) for cause in sorted(causes)]
    assert (result.is_sufficient, result.is_necessary, result.confidence) == (True, True, 1.0)
    assert len(search.answers) <= 4 + len(causes) * (2 + math.ceil(math.log2(count)))


@given(st.data())
def test_a_difference_that_builds_only_with_its_neighbour_is_named_with_it(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(2, 30))
    cause = data.draw(st.integers(0, count - 1))
    first = data.draw(st.integers(0, count - 2))
    pair = {first, first + 1}
    builds = lambda chosen: len(pair & chosen) != 1  # noqa: E731
    result = CauseSearch(count, exact(lambda chosen: cause in chosen, builds)).run(*SURE)
    assert result.groups == ((first, first + 1) if cause in pair else (cause,),)
    assert result.is_sufficient
    assert result.is_necessary


@given(st.data())
def test_a_difference_that_does_not_build_without_an_earlier_one_is_named_with_it(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(2, 30))
    needed = data.draw(st.integers(0, count - 2))
    cause = data.draw(st.integers(needed + 1, count - 1))
    builds = lambda chosen: cause not in chosen or needed in chosen  # noqa: E731
    result = CauseSearch(count, exact(lambda chosen: cause in chosen, builds)).run(*SURE)
    assert result.groups in (((needed,), (cause,)), ((needed, cause),))
    assert (result.is_sufficient, result.is_necessary) == (True, True)


def test_a_second_cause_leaves_the_others_bad() -> None:
    search = CauseSearch(8, exact(lambda chosen: bool(chosen & {2, 6}), lambda _: True))
    result = search.run(*SURE)
    assert (result.groups, result.is_sufficient, result.is_necessary) == (((2,),), True, False)


def test_states_that_never_build_end_the_search_with_a_group() -> None:
    asked: list[int] = []

    def ask(place: int) -> str:
        asked.append(place)
        return UNRESOLVED

    assert find_boundary(100, ask) == (0, 100)
    assert len(asked) < 10


@given(st.integers(1, 500), st.data())
def test_a_boundary_takes_log2_steps_and_prefers_cheap_places(
    high: int, data: st.DataObject
) -> None:
    cause = data.draw(st.integers(1, high))
    asked: list[int] = []

    def ask(place: int) -> str:
        asked.append(place)
        return BAD if place >= cause else GOOD

    assert find_boundary(high, ask) == (cause - 1, cause)
    assert len(asked) <= math.ceil(math.log2(high)) + 1
    asked.clear()
    find_boundary(high, ask, lambda place: place % 10 == 3)
    assert high < 40 or asked[0] % 10 == 3
