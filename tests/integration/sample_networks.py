"""Networks for tests of the export and reference stages."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import nn


class Affine(nn.Module):
    def __init__(self, features: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(4, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Shrunk(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        options = {"mode": "bicubic", "antialias": True}
        return nn.functional.interpolate(x, scale_factor=0.5, **options)


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


class Masked(Small):
    """The same, times a mask that its forward makes of constants."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        mask = y.new_ones(y.shape[2:])
        mask[:2, 1:] = 2
        return y * mask


class InvertedResidual(nn.Module):
    """A block of mobilenet_v2 with its head: depthwise convolution, sum, mean, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.block = nn.Sequential(
            nn.Conv2d(8, 16, 1),
            nn.ReLU6(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.ReLU6(),
            nn.Conv2d(16, 8, 1),
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.block(x)
        return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


class MaskedMean(nn.Module):
    """The mean of the tokens that a mask selects."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weight = mask.unsqueeze(-1)
        return (x * weight).sum(1) / weight.sum(1).clamp(min=1)


class Nested(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"sum": x.sum(1), "unused": None, "heads": (x + 1, [x + 2])}


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


class Unrolled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[0])
        for row in x:
            total = torch.tanh(total + row)
        return total


class NoKernel(nn.Module):
    """No operator of ExecuTorch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x)


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(5, 5)


class FixedBatch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(int(x.shape[0]), 2, 2) + 1


class IgnoresOne(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 1


class Products(nn.Module):
    """The only operator without a symbolic function is decomposed by dynamo."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.kron(x, x)


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
        from torchvision.ops import deform_conv2d  # two seconds, so not at collection

        return deform_conv2d(x, offset, self.weight)


class Untranslatable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x @ x.transpose(0, 1))


class Recurrent(nn.Module):
    """Its time is a number in what dynamo writes."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x)[0]


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return x * float(factor)


def captured() -> nn.Module:
    """Return a program, whose eval() raises, inside another module."""
    sizes = ({0: torch.export.Dim("n", min=1, max=64)},)
    program = torch.export.export(
        nn.Linear(4, 3).eval(), (torch.zeros(3, 4),), dynamic_shapes=sizes
    )
    return nn.Sequential(nn.Sequential(program.module()), nn.Dropout(), nn.ReLU())


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and in use
        script: nn.Module = torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    return script


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.LazyLinear(3))


class Gated(nn.Module):
    """Exporters name inner tensors linear, linear.weight, relu and the like."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.linear(x))
        return hidden * y, torch.where(hidden.sum() > 0, hidden, y)


class LayerNorm(nn.Module):
    """Its operator is not in opsets below 17."""

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
        return {"fine": x, "rows": torch.log(torch.relu(x)), "roots": torch.sqrt(x)}


class Undefined(nn.Module):
    def __init__(self, broken: bool = True) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, torch.nan if broken else 1.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale.sum() * torch.sqrt(-1 - x.abs())


class Bits(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.int() & 3


class Ranked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.round().topk(3).indices


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


class RarelyRandom(nn.Module):
    """Mostly gives the same outputs; its layers stay in training mode."""

    def __init__(self, kind: str, is_tracking: bool = True) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleDict(
            {
                "dropout": nn.Dropout(1e-5),
                "norm": nn.BatchNorm1d(4, track_running_stats=is_tracking),
            }
        )

    def train(self, mode: bool = True) -> RarelyRandom:
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "noise":
            return x + torch.rand_like(x) * 1e-6
        return self.layers[self.kind](x)


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


class Bags(nn.Module):
    """Sums of embeddings; the first offset must be 0."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(16, 4, mode="sum")

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bags(ids, offsets)


def bag_offsets(shape: tuple[int, ...], _dtype: str, case: str, _seed: int) -> np.ndarray:
    return {"min": 2, "opt": 2, "max": 2, "odd": 1}[case] * np.arange(shape[0], dtype=np.int64)


class Sampled(nn.Module):
    """Draws indices; negative probabilities are refused."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(x, 2, replacement=True)


class Branches(nn.Module):
    """Branches on sizes, None for no branch; ``power`` is the largest usual power of 2."""

    def __init__(
        self, special: int | None = None, period: int | None = None, power: int | None = None
    ) -> None:
        super().__init__()
        self.special, self.period, self.power = special, period, power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.special is not None and x.shape[1] == self.special:  # the special size
            return x + 1
        if self.period is not None and x.shape[1] % self.period == 0:  # every period
            return x * 2
        n = x.shape[1]
        if self.power is not None and n & (n - 1) == 0 and n > self.power:  # a power of 2
            return x * 3
        return x - 1


class Portrait(nn.Module):
    """Doubles images that are higher than wide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[2] > x.shape[3] else x + 1


class IndirectBranch(nn.Module):
    """A branch on the size that twice a weight has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(29))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[1] == self.weight.shape[0] * 2 else x


class Looked(nn.Module):
    """Looks its size up in a table, of which a tracer sees the default."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALES.get(x.shape[1], 1.0)


SCALES = {48: 2.0, 448: 4.0}


class SquareBranch(nn.Module):
    """Takes another way if both sizes are equal and above 2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] == x.shape[1] > 2 else x


class Folded(nn.Module):
    """Folds rows of four; other sizes take another way to the same sums."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % 4 == 0:
            return x.reshape(x.shape[0], x.shape[1] // 4, 4).sum((1, 2))
        return x.sum(1)


class Padded(nn.Module):
    """Pads to a multiple of 4; both sides of its branch give the same numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        missing = -x.shape[1] % 4
        if missing > 0:
            x = nn.functional.pad(x, (0, missing))
        return x.cumsum(1)[:, : x.shape[1] - missing]


class Halved(nn.Module):
    """Refuses odd sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] % 2 == 0
        return x * 2


class Limited(nn.Module):
    """Refuses large values, and NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.max() < 50
        return x * 2


class Halving(nn.Module):
    """Never ends for infinite values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.abs().max() > 4:
            x = x / 2
        return x + 1


class Large(nn.Module):
    """A branch on values above 4.5."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.max() > 4.5:  # large values
            return x * 2
        return x


class Saturated(nn.Module):
    """A branch on a size that is invisible in saturated outputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = 0.5 if x.shape[1] == 5001 else 0.0  # the special size
        return torch.tanh(x * 50 + shift)


def unchanged(model: Any) -> Any:
    """Return the graph as it is, for a hook."""
    return model


def previous_outputs(_inputs: Any, outputs: Any) -> Any:
    """Return the golden outputs before a step, for a reference."""
    return outputs


class Logarithm(nn.Module):
    """Infinite at 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.rfft(x))
