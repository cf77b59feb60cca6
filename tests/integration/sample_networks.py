"""Networks for tests of the export and reference stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchvision.ops import deform_conv2d


class Affine(nn.Module):
    def __init__(self, features: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(4, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Small(nn.Sequential):
    """Conv, batch norm, ReLU, twice."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )


class Nested(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"sum": x.sum(1), "unused": None, "heads": (x + 1, [x + 2])}


@dataclass
class Scores:
    logits: torch.Tensor
    size: torch.Tensor


class Dataclass(nn.Module):
    def forward(self, x: torch.Tensor) -> Scores:
        return Scores(x + 1, x.sum(1))


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x.sum(1)


class WithNumber(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x + 1, x.shape[1]


class Cumulated(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Double.apply(x)


class ValueBranch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class ForTorchscript(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():
            raise NotImplementedError("not with torch.export")
        return x + 1


class FixedSizes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(3, 5) * 2


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(5, 5)


class FixedBatch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(int(x.shape[0]), 2, 2) + 1


class IgnoresOne(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 1


class Asinh(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.asinh(x)


class Differences(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.diff(x)


class Celu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.celu(x)


class Deformed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3, 3, 3))

    def forward(self, x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        return deform_conv2d(x, offset, self.weight)


class Untranslatable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x @ x.transpose(0, 1))


class LayerNorm(nn.Module):
    """Cannot be converted below opset 17, and by dynamo not below 18."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).mean(1)


class Identity(nn.Module):
    """Accepts tensors of every dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], 2, 2)


class Infinite(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"fine": x, "broken": torch.log(x - x)}


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


class ListOfTensors(nn.Module):
    def forward(
        self, terms: list[torch.Tensor], bias: torch.Tensor | None, *, scale: float
    ) -> torch.Tensor:
        total = scale * torch.stack(terms).sum(0)
        return total if bias is None else total + bias


class KeywordOrder(nn.Module):
    def forward(self, b: torch.Tensor, *, a: torch.Tensor) -> torch.Tensor:
        return a - 2 * b


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(x)


def make_large(features: int = 64) -> nn.Module:
    """Return a network with weights above the limit for external data."""
    return nn.Linear(4, features * 100)


def not_a_module() -> str:
    return "a string"


def raises() -> nn.Module:
    raise ValueError("no such backbone")


class Nest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(x)
        return torch.sigmoid(self.scale(hidden))

    def scale(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * 2
