"""The search for the fewest failing nodes, without graphs."""

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from buildsys.reduce.search import is_same_failure, smallest_part


@given(st.integers(1, 300), st.data())
def test_a_fault_of_one_or_a_few_nodes_is_found_without_the_others(
    count: int, data: st.DataObject
) -> None:
    guilty = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=3))
    trials = 0

    def fails(nodes: Sequence[int]) -> bool:
        nonlocal trials
        trials += 1
        assert list(nodes) == sorted(nodes)
        return guilty <= {*nodes}

    assert set(smallest_part(count, fails)) >= guilty
    if len(guilty) == 1:
        assert set(smallest_part(count, fails)) == guilty
        assert trials <= 2 * (2 * math.ceil(math.log2(count + 1)) + 3)
    assert trials <= 2 * (2 * math.ceil(math.log2(count + 1)) + 65)


@given(st.integers(1, 60), st.randoms(use_true_random=False))
def test_the_result_always_fails_itself(count: int, chance: object) -> None:
    failing = {tuple(range(count))}

    def fails(nodes: Sequence[int]) -> bool:
        if chance.random() < 0.3:  # type: ignore[attr-defined]
            failing.add(tuple(nodes))
        return tuple(nodes) in failing

    assert smallest_part(count, fails) in failing


def test_only_the_same_kind_and_message_is_the_same_failure() -> None:
    wrong, crash = {"kind": "wrong", "text": "x"}, {"kind": "crash", "text": "y"}
    refused = {"kind": "error", "text": "cannot take Erf", "operators": ["Erf", "Gelu"]}
    assert is_same_failure(wrong, {"kind": "wrong", "text": "z"})
    assert not is_same_failure(wrong, crash)
    assert not is_same_failure(wrong, None)
    assert is_same_failure(refused, {**refused, "operators": ["Erf"]})
    assert not is_same_failure(refused, {**refused, "operators": ["Sin"]})
    build = {"kind": "error", "text": "node 3: unsupported padding mode of the pooling layer"}
    assert is_same_failure(build, {**build, "text": "node 0: unsupported padding mode of pooling"})
    assert not is_same_failure(build, {**build, "text": "out of memory"})
