"""Right alternatives of integer outputs: ties, and values next to a step."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from buildsys.models.alternatives import find_alternatives
from buildsys.models.torch_model import from_torch
from buildsys.onnx_graphs.output_policies import compare_outputs
from buildsys.onnx_graphs.tensors import tensor_of

SCORES = torch.tensor([[3.0, 1.0, 3.0, 2.0], [1.0, 1.0, 1.0, 0.0]])
VALUES = torch.tensor([[0.499999, 0.7], [1.5, 200.4]])
Function = Callable[[torch.Tensor], torch.Tensor]


def alternatives(function: Function, x: torch.Tensor) -> list[list[int]] | None:
    outputs = {"y": from_torch(function(x)), "float": from_torch(x)}
    found = find_alternatives(lambda: {"y": function(x), "float": x}, outputs)
    return sorted(row[:3] for row in found["y"].tolist()) if found else None


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


def right(function: Function, x: torch.Tensor, *engines: list[list[int]]) -> list[bool | None]:
    """Compare what engines return; None: it proves nothing."""
    expected = {"y": from_torch(function(x))}
    rows = find_alternatives(lambda: {"y": function(x)}, expected)
    limits = {"rtol": 1e-3, "cosine": 0.9999}
    compared = (
        compare_outputs(
            {"y": tensor_of(engine, expected["y"].dtype)},
            expected,
            limits,
            inputs={},
            alternatives=rows,
        )["y"]
        for engine in engines
    )
    return [None if figures.uninformative else figures.passed for figures in compared]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.topk(2).indices,
        lambda x: x.argsort(-1, descending=True)[:, :2],
        lambda x: torch.stack([x, x], 0).sort(-1, descending=True).indices[1, :, :2],
    ],
)
def test_no_index_occurs_twice(function: Function) -> None:
    x = torch.tensor([[3.0, 1.0, 3.0, 2.0]])
    engines = [[0, 2]], [[2, 0]], [[0, 0]], [[2, 2]], [[0, 3]], [[2, 1]]
    assert right(function, x, *engines) == [True, True, False, False, False, False]


def test_equal_scores_excuse_no_other_place() -> None:
    x = torch.tensor([[1.0, 1.0, 0.0], [4.0, 5.0, 3.0]])
    engines = [0, 1], [1, 1], [2, 1], [0, 0], [1, 2]
    assert right(lambda x: x.argmax(1), x, *engines) == [True, True, False, False, False]
    engines = [2, 2], [1, 2], [2, 1]
    assert right(lambda x: x.argmin(1), x, *engines) == [True, False, False]


def test_scores_that_tie_everywhere_prove_nothing() -> None:
    for function in (lambda x: x.argmax(1), lambda x: x.softmax(1).argmax(1)):
        assert right(function, torch.ones(2, 3), [0, 0], [2, 1], [3, 0]) == [None, None, False]
    x = torch.tensor([[1.0, 1.0], [1.0, 2.0]])
    assert right(lambda x: x.argmax(1), x, [1, 1], [0, 0]) == [True, False]


@pytest.mark.parametrize("large", [1.0, 1e4])
def test_scores_of_one_sample_do_not_blur_others(large: float) -> None:
    x = torch.tensor([[0.1, 0.2, 0.3], [large, 0.0, 0.0]])
    assert right(lambda x: x.argmax(1), x, [2, 0], [1, 0]) == [True, False]
    assert right(lambda x: (x * 10).floor().int(), x, [[1, 2, 0], [10 * int(large), 0, 0]]) == [
        False
    ]


def test_scores_after_softmax_tie_within_rounding_only() -> None:
    x = torch.tensor([[2.0, 1.9999, 0.0], [2.0, 2.0 - 1e-6, 0.0]])
    assert right(lambda x: x.softmax(1).argmax(1), x, [0, 1], [1, 0]) == [True, False]


def test_levels_are_steps_from_the_value() -> None:
    x = torch.rand(4, 50, generator=torch.Generator().manual_seed(0))
    levels = (x * 255).floor().int()
    steps: Function = lambda x: (x * 255).round().to(torch.int32)  # noqa: E731
    assert right(steps, x, steps(x).tolist(), levels.tolist()) == [True, False]


def test_operations_in_place_have_no_alternative() -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y += torch.tensor([0.25, 0.3, 0.2, 0.1])
        return y.round().int()

    def next_index(x: torch.Tensor) -> torch.Tensor:
        return x.argmax(1).add_(1)

    for function in (shifted, next_index):
        assert alternatives(function, SCORES) is None


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
        lambda x: x[:0].round().int(),
        lambda x: x[:, :0].topk(0).indices,
    ],
)
def test_other_integers_have_no_alternative(function: Function) -> None:
    assert alternatives(function, SCORES) is None


def test_an_integer_of_nan_is_undefined() -> None:
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    x = torch.tensor([[math.nan, 0.2], [3.1, 4.2]])
    assert alternatives(lambda x: x.int(), x) == [[0, least, most]]
    assert alternatives(lambda x: x.argmax(-1), x) == ties((0, 0), (0, 1))
