"""A network with an operator missing from every library: scaled clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class ScaledClip(torch.autograd.Function):
    """Scaled clipping, exported as ``mydomain::ScaledClip`` with two outputs."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, scale: float, low: float, high: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the clipped values and a mask of unclipped ones."""
        scaled = x * scale
        inside = (scaled > low) & (scaled < high)
        ctx.save_for_backward(inside)
        ctx.scale = scale
        ctx.mark_non_differentiable(inside)
        return scaled.clamp(low, high), inside

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of ``x``, zero for clipped values."""
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside * ctx.scale, None, None, None

    @staticmethod
    def symbolic(g: Any, x: Any, scale: float, low: float, high: float) -> Any:
        """Write the node; without types, downstream shapes would be unknown."""
        clipped, inside = g.op(
            "mydomain::ScaledClip", x, scale_f=scale, bounds_f=[low, high], outputs=2
        )
        clipped.setType(x.type())
        inside.setType(x.type().with_dtype(torch.bool))
        return clipped, inside


class ClippedSignal(nn.Module):
    """Clip a float32 image and a float16 signal with different bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, image: torch.Tensor, signal: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return image features and mask, and the signal with a count."""
        clipped, inside = ScaledClip.apply(image, 0.5, -0.4, 0.6)
        levels, valid = ScaledClip.apply(signal, 2.0, -1.0, 1.0)
        return (
            torch.relu(self.conv(clipped)),
            inside,
            levels,
            valid.to(torch.int32).sum(1, dtype=torch.int32),
        )
