"""A custom activation as one graph node, through a ``symbolic`` method."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class ClampSwish(torch.autograd.Function):
    """``z / (1 + exp(-z))`` with ``z = max(x, 0)``, exported as one node.

    The torchscript exporter writes custom_domain::customOp2. The dynamo exporter ignores
    ``symbolic`` and writes the operators of ``forward``.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 (no backward)
        """Compute the activation."""
        z = x.clamp(min=0)
        return z / (1 + torch.exp(-z))

    @staticmethod
    def symbolic(g: Any, x: Any) -> Any:
        """Return the node, with the output type set to the input's."""
        return g.op("custom_domain::customOp2", x).setType(x.type())


class ClampSwishNet(nn.Module):
    """A convolution, the activation, global average pooling and a linear layer."""

    def __init__(self, channels: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the class scores of images of any size."""
        scores: torch.Tensor = self.head(ClampSwish.apply(self.conv(x)).mean((2, 3)))
        return scores
