"""Right alternatives of integer outputs: ties, and values next to a step."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from buildsys.models.alternatives import find_alternatives
from buildsys.models.torch_model import from_torch

SCORES = torch.tensor([[3.0, 1.0, 3.0, 2.0], [1.0, 1.0, 1.0, 0.0]])
VALUES = torch.tensor([[0.49999, 0.7], [1.5, 200.4]])
Function = Callable[[torch.Tensor], torch.Tensor]


def alternatives(function: Function, x: torch.Tensor) -> list[list[int]] | None:
    outputs = {"y": from_torch(function(x)), "float": from_torch(x)}
    found = find_alternatives(lambda: {"y": function(x), "float": x}, outputs)
    return sorted(found["y"].tolist()) if found else None


def ties(*pairs: tuple[int, int]) -> list[list[int]]:
    return [[place, index, index] for place, index in pairs]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.topk(3).indices, ties(
            (0, 0), (0, 2), (1, 0), (1, 2), *((p, i) for p in (3, 4, 5) for i in (0, 1, 2)))),
        (lambda x: x.argmax(-1), ties((0, 0), (0, 2), (1, 0), (1, 1), (1, 2))),
        (lambda x: x.max(-1, keepdim=True).indices.int()[1:], ties((0, 0), (0, 1), (0, 2))),
        (lambda x: x.max(0)[1], ties((1, 0), (1, 1))),
        (lambda x: x.T.argmax(0)[None], ties((0, 0), (0, 2), (1, 0), (1, 1), (1, 2))),
        (lambda x: torch.argmax(x), ties((0, 0), (0, 2))),
        (lambda x: (x * 2).round().argsort(-1, descending=True)[0, :2], ties(
            (0, 0), (0, 2), (1, 0), (1, 2))),
    ],
)  # fmt: skip
def test_indices_of_equal_scores_may_swap(function: Function, expected: list[list[int]]) -> None:
    assert alternatives(function, SCORES) == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.round().to(torch.uint8), [[0, 0, 1], [2, 1, 2]]),
        (lambda x: (x.clamp(0, 1.5) > 1.4999).T.unsqueeze(0), [[1, 0, 1]]),
        (lambda x: x > 0.5, [[0, 0, 1]]),
        (lambda x: torch.floor(x * 2).int() + 7, [[0, 7, 8], [2, 9, 10]]),
        (lambda x: torch.bucketize(x, torch.tensor([0.5, 1.5])), [[0, 0, 1], [2, 1, 2]]),
    ],
)
def test_values_next_to_a_step_may_be_on_either_side(
    function: Function, expected: list[list[int]]
) -> None:
    assert alternatives(function, VALUES) == expected


def test_integer_scores_are_exact() -> None:
    function: Function = lambda x: x.topk(2).indices[:1]  # noqa: E731
    assert alternatives(function, SCORES.int()) == ties((0, 0), (0, 2), (1, 0), (1, 2))


def test_scores_may_be_on_either_side_of_a_step() -> None:
    x = torch.tensor([[0.2, 1.4999999, 1.9]])
    assert alternatives(lambda x: x.round().argmax(-1), x) == ties((0, 1), (0, 2))


def test_numbers_that_rounding_moves_far_have_more_alternatives() -> None:
    x = torch.linspace(0.0, 1.0, 1000)

    def steps(offset: float) -> list[list[int]] | None:
        large = torch.full((1,), offset)
        return alternatives(lambda x: ((x + large - large) * 1e4).floor().int(), x)

    assert len(steps(1000.0) or []) > 1.5 * len(steps(0.0) or [])


def test_a_large_network_runs_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def steps(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x.round().int()

    assert alternatives(steps, VALUES) == [[0, 0, 1], [2, 1, 2]]
    assert len(calls) == 3
    monkeypatch.setattr("buildsys.models.alternatives._MOST_MOVED", 3)
    assert alternatives(steps, VALUES) == [[0, 0, 1], [2, 1, 2]]
    assert len(calls) == 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_coarser_type_rounds_farther(dtype: torch.dtype) -> None:
    x = torch.tensor([200.0, 99.0], dtype=dtype)
    assert alternatives(lambda x: (x - 0.25).round().int(), x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.int() @ x.int().T,  # not by one score
        lambda x: x.topk(2).values.int()[:0],
        lambda x: x.topk(1).indices + 1,  # a shift of indices is not followed
        lambda x: torch.tensor([3, 4]),
    ],
)
def test_other_integers_have_no_alternative(function: Function) -> None:
    assert alternatives(function, SCORES) is None


def test_an_integer_of_nan_is_undefined() -> None:
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    x = torch.tensor([[math.nan, 0.2], [3.1, 4.2]])
    assert alternatives(lambda x: x.int(), x) == [[0, least, most]]
    assert alternatives(lambda x: x.argmax(-1), x) == [[0, least, most]]
