"""Networks that compute something else at special values, and sensitive ones."""

import torch
from torch import nn


class Cleaned(nn.Module):
    """Replaces infinities, which its export does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.onnx.is_in_onnx_export():
            return torch.where(torch.isnan(x), 0.0, x) + 1
        return torch.nan_to_num(x, 0.0, 9.0, -9.0) + 1


class ZeroBranch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.any() else x - 1


class Faint(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.abs().max() < 1e-3 else x


class Unmasked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / x.sum() if x.any() else torch.zeros(x.shape)


class LastRow(nn.Module):
    """Scales everything if the last of its ids occurs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(3000, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.table[x]
        return rows * 2 if (x == 2999).any() else rows


class NegativeCells(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - 4 if x.min() < -3 else x


class HashedIds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x % 7 if x.max() > 2**31 else x


class Styled(nn.Module):
    """Divides by deviations, which are rounding alone for constant pictures."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.ReflectionPad2d(1), nn.Conv2d(3, 3, 3), nn.InstanceNorm2d(3))
        self.layers = nn.Sequential(*layers, *layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Ranked(nn.Module):
    """Returns places, which say nothing where values are NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.argmax(1)


class Mirrored(nn.Module):
    """Compares a row with its mirror image: the middle of an odd size is always a tie."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sides = torch.stack([x, x.flip(1)], -1)
        return (sides if x.shape[1] != 57 else sides.flip(-1)).argmax(-1)


class Waves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.sin(), x.cos()], 1)
