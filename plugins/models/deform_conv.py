"""Deformable convolution with computed offsets and mask."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.ops import DeformConv2d


class DeformableBlock(nn.Module):
    """torchvision's deformable convolution (v2) with two groups."""

    def __init__(
        self, inputs: int = 8, outputs: int = 12, kernel: int = 3, offset_groups: int = 2
    ) -> None:
        super().__init__()
        points = offset_groups * kernel * kernel
        self.points = points
        self.predict = nn.Conv2d(inputs, 3 * points, kernel, stride=2, padding=1)
        self.deform = DeformConv2d(inputs, outputs, kernel, stride=2, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take (N, inputs, H, W) and return (N, outputs, H/2, W/2)."""
        predicted = self.predict(x)
        offset, mask = predicted[:, : 2 * self.points], predicted[:, 2 * self.points :].sigmoid()
        result: torch.Tensor = self.deform(x, 4 * offset, mask)
        return result
