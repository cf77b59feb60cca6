"""Linear layers with fixed weights, for checks by hand."""

from __future__ import annotations

import torch
from torch import nn

WEIGHTS = ((1.0, 2.0, 3.0, 4.0), (2.0, 3.0, 4.0, 5.0), (3.0, 4.0, 5.0, 6.0))


def _layer(offset: float) -> nn.Linear:
    weights = torch.tensor(WEIGHTS) + offset
    layer = nn.Linear(weights.shape[1], weights.shape[0], bias=False)
    layer.weight = nn.Parameter(weights)
    return layer


class Linear(nn.Module):
    """One linear layer from 4 to 3 features, without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = _layer(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` times the fixed weights."""
        out: torch.Tensor = self.linear(x)
        return out


class TwoHeads(nn.Module):
    """Two linear layers on one input; the second has weights plus one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _layer(0.0)
        self.second = _layer(1.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs of both heads."""
        return self.first(x), self.second(x)
