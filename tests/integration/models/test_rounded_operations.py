"""Outputs that are rounding errors."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from buildsys.models.rounded_operations import is_mostly_rounding

SMALL = 1e-5 * torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def is_rounding(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> bool:
    def call() -> dict[str, torch.Tensor]:
        return {"y": function(x.clone())}

    with torch.inference_mode():
        return is_mostly_rounding(call, call(), 2.5e-5)


@pytest.mark.parametrize(
    "function",
    [
        functional.elu, functional.selu, functional.celu, torch.expm1, torch.log1p,
        lambda x: functional.elu(x, inplace=True),
        lambda x: functional.selu_(x) * 3,
        lambda x: x.neg().expm1_(),
        lambda x: x - x.tanh(),
        lambda x: x.exp() - 1,
        lambda x: x.sigmoid() - 0.5,
        lambda x: functional.softplus(x) - functional.softplus(torch.zeros(())),
        lambda x: functional.instance_norm((x[None] * 0 + 0.3).sin()),
    ],
)  # fmt: skip
def test_differences_of_nearly_equal_numbers_are_rounding(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert is_rounding(function, SMALL)
    assert not is_rounding(lambda x: function(x) + 1, SMALL)


@pytest.mark.parametrize(
    "function",
    [
        functional.gelu, functional.hardswish, functional.mish, functional.silu, torch.erf,
        functional.softplus, functional.normalize, functional.leaky_relu, torch.asinh,
        lambda x: x @ torch.ones(6, 3),
        lambda x: functional.cosine_similarity(x, x.flip(0)),
        lambda x: functional.layer_norm(x, (6,), eps=1e-12),
        lambda x: functional.elu(1e6 * x),
        lambda x: x.argmax(1),
    ],
)  # fmt: skip
def test_small_outputs_are_not_all_rounding(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert not is_rounding(function, SMALL)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_and_sparse_tensors_are_left_as_they_are() -> None:
    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor([x, x[:2]]).to_padded_tensor(0.0).sum(0)

    for function in (padded, lambda x: x.to_sparse().to_dense()):
        assert not is_rounding(function, SMALL)
