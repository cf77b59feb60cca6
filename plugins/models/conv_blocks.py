"""Small convolution networks for export and simplification."""

from __future__ import annotations

import torch
from torch import nn


def conv_bn_relu(inputs: int, outputs: int, kernel: int, padding: int = 0) -> nn.Sequential:
    """Return a convolution, a batch norm and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class FlattenHead(nn.Module):
    """Two blocks, global average pooling through flatten, and a linear layer.

    With a dynamic batch, ``torch.flatten(x, 2, 3)`` exports as shape arithmetic, most of it
    removed by simplification.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            conv_bn_relu(3, 16, 3, padding=1), conv_bn_relu(16, 64, 5, padding=2)
        )
        self.pool = nn.AdaptiveAvgPool1d(1)
        self.head = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the class scores of images of any size."""
        positions = torch.flatten(self.blocks(x), 2, 3)
        pooled = torch.flatten(self.pool(positions), 1)
        scores: torch.Tensor = self.head(pooled)
        return scores
