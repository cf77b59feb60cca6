"""An activation of one's own as one node of the graph: an autograd function with a ``symbolic`` method."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class ClampSwish(torch.autograd.Function):
    """``z / (1 + exp(-z))`` with ``z = max(x, 0)``; the TorchScript exporter writes it as custom_domain::customOp2.

    The dynamo exporter does not look at ``symbolic``: it writes the operators of ``forward``.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 (nothing is kept for a backward)
        """Compute the activation."""
        z = x.clamp(min=0)
        return z / (1 + torch.exp(-z))

    @staticmethod
    def symbolic(g: Any, x: Any) -> Any:
        """Return the node; the type of its output is that of its input, which the exporter cannot know."""
        return g.op("custom_domain::customOp2", x).setType(x.type())


class ClampSwishNet(nn.Module):
    """A convolution, the activation, and a linear layer on the mean over all positions."""

    def __init__(self, channels: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the class scores of images of any size."""
        scores: torch.Tensor = self.head(ClampSwish.apply(self.conv(x)).mean((2, 3)))
        return scores
