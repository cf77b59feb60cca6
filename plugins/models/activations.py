"""Small networks with operators missing from an exporter."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Asinh(nn.Module):
    """The inverse hyperbolic sine, unknown to the torchscript exporter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return asinh of every element."""
        return torch.asinh(x)


class ClampSwish(torch.autograd.Function):
    """Swish of max(x, 0) as an autograd function; both exporters inline it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return max(x, 0) / (1 + exp(-max(x, 0)))."""
        ctx.save_for_backward(x)
        x = x.clamp(min=0)
        return x / (1 + torch.exp(-x))


class ClampSwishNet(nn.Module):
    """The autograd function only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the clamped swish of every element."""
        result: torch.Tensor = ClampSwish.apply(x)  # type: ignore[no-untyped-call]
        return result


class ShiftedWindows(nn.Module):
    """Swin's shifted windows: shift cyclically, mix within windows, shift back."""

    def __init__(self, channels: int = 8, window: int = 4) -> None:
        super().__init__()
        self.window = window
        self.mix = nn.Linear(window * window * channels, window * window * channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take and return (N, H, W, C), H and W multiples of the window."""
        shift, size = self.window // 2, self.window
        shifted = torch.roll(x, shifts=(-shift, -shift), dims=(1, 2))
        n, height, width, channels = x.shape
        cut = shifted.view(n, height // size, size, width // size, size, channels).permute(
            0, 1, 3, 2, 4, 5
        )
        mixed = self.mix(cut.flatten(3)).view(cut.shape).permute(0, 1, 3, 2, 4, 5)
        return torch.roll(mixed.reshape(x.shape), shifts=(shift, shift), dims=(1, 2))
