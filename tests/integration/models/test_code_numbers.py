"""Numbers in the code of a network."""

import torch
from sample_networks import Looked
from torch import nn

from buildsys.models.code_numbers import code_numbers


def test_numbers_of_tables_and_branches_are_read_from_code() -> None:
    class Limits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.window = 93

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def inner(n: int) -> bool:
                return n in {777, 91}

            return x if inner(x.shape[0]) else -x

    numbers = code_numbers(nn.Sequential(nn.Linear(1234, 1), Looked(), Limits()))
    assert {48, 448, 449, 777, 91, 93} <= {*numbers}
    assert 1234 not in numbers
