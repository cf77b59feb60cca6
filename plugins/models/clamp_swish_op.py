"""A custom activation as a torch operator, one node with dynamo."""

from __future__ import annotations

import torch
from torch import nn


@torch.library.custom_op("custom_domain::clamp_swish", mutates_args=())
def clamp_swish(x: torch.Tensor) -> torch.Tensor:
    """Return ``z / (1 + exp(-z))`` with ``z = max(x, 0)``."""
    z = x.clamp(min=0)
    return z / (1 + torch.exp(-z))


@clamp_swish.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class ClampSwishNet(nn.Module):
    """A convolution, the activation, global average pooling and a linear layer."""

    def __init__(self, channels: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the class scores of images of any size."""
        scores: torch.Tensor = self.head(clamp_swish(self.conv(x)).mean((2, 3)))
        return scores
