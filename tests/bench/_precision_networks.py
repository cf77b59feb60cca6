"""Small networks of many kinds with drawn data, for ``precision_limits.py``.

Untrained networks are useless to judge low precision: their outputs hardly vary. Every network is
trained for half a minute on one thread (several are slower at these sizes).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Array = np.ndarray
SIZE, TRAINED, TESTED = 32, 4096, 512  # pixels of a side, samples
_FRAMES, _WORDS, _GROUPS = 32, 48, 8


@dataclass(frozen=True)
class Task:
    """Inputs with targets, the loss, and the quality: 1 is best."""

    draw: Callable[[np.random.Generator, int], tuple[Array, Array]]
    loss: Callable[[list[torch.Tensor], torch.Tensor], torch.Tensor]
    quality: Callable[[list[Array], Array], float]


def scenes(rng: np.random.Generator, count: int, objects: int) -> dict[str, Array]:
    """Draw pictures of shapes on a gradient, with masks, kinds and places of the last object."""
    place = (np.arange(SIZE) + 0.5) / SIZE
    tilt = rng.uniform(-0.3, 0.3, (2, count, 3, 1, 1))
    images = rng.uniform(0.2, 0.8, (count, 3, 1, 1)) + tilt[0] * place[:, None] + tilt[1] * place
    masks, drawn = np.zeros((count, SIZE, SIZE), np.int64), {}
    for _ in range(objects):
        x, y = rng.uniform(0.25, 0.75, (2, count, 1, 1))
        radius, kind = rng.uniform(0.15, 0.3, (count, 1, 1)), rng.integers(10, size=count)
        colour = rng.uniform(-1, 1, (count, 3, 1, 1))
        colour[:, 0] += np.sign(colour[:, 0])
        u, v = (place - x) / radius, (place[:, None] - y) / radius
        largest, square = np.maximum(abs(u), abs(v)), u * u + v * v
        shapes = np.stack((
            square < 1, largest < 0.85, (square < 1) & (square > 0.4), abs(u) + abs(v) < 1,
            (np.minimum(abs(u), abs(v)) < 0.3) & (largest < 1),
            (np.sin(7 * v) > 0) & (largest < 1), (np.sin(7 * u) > 0) & (largest < 1),
            (np.sin(6 * u) * np.sin(6 * v) > 0) & (largest < 1),
            (v > -0.8) & (abs(u) < (0.9 - v) / 1.9) & (v < 0.9),
            (np.minimum(abs(u - v), abs(u + v)) < 0.4) & (largest < 1),
        ), 1)[np.arange(count), kind]  # fmt: skip
        images = np.where(shapes[:, None], colour, images)
        masks = np.where(shapes, 1 + kind[:, None, None] % 5, masks)
        drawn = {"kind": kind, "x": x.ravel(), "y": y.ravel(), "radius": radius.ravel()}
        drawn["tone"] = colour.mean(1).ravel()
    noisy = (images + rng.normal(0, 0.05, images.shape)).astype(np.float32)
    return {"images": noisy, "clean": images.astype(np.float32), "masks": masks, **drawn}


def _pictures(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    drawn = scenes(rng, count, 1)
    return drawn["images"], drawn["kind"]


def _segments(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    drawn = scenes(rng, count, 2)
    return drawn["images"], drawn["masks"][:, ::2, ::2]


def _objects(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    drawn = scenes(rng, count, 1)
    return drawn["images"], np.stack([drawn[name] for name in ("kind", "x", "y", "radius")], 1)


def _temperatures(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    drawn = scenes(rng, count, 1)
    warmth = 1.5 * drawn["tone"] + 12 * (drawn["radius"] - 0.225) + 2 * (drawn["x"] - 0.5)
    return drawn["images"], (293.15 + 2 * warmth[:, None]).astype(np.float32)


def _small_pictures(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    grey = scenes(rng, count, 2)["clean"].mean(1, keepdims=True)
    small = grey.reshape(count, 1, SIZE // 2, 2, SIZE // 2, 2).mean((3, 5))
    return small + rng.normal(0, 0.02, small.shape).astype(np.float32), grey


def _sentences(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    favourite = rng.integers(_GROUPS, size=(count, 1))
    words = rng.integers(_WORDS, size=(count, 16))
    biased = rng.random(words.shape) < 0.3
    words = np.where(biased, words // _GROUPS * _GROUPS + favourite, words)
    counts = (words[:, :, None] % _GROUPS == np.arange(_GROUPS)).sum(1)
    return words, (counts + np.linspace(0.1, 0, _GROUPS)).argmax(1)


def _tags(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    words = rng.integers(_WORDS, size=(count, 16))
    before = np.concatenate([np.zeros((count, 1), np.int64), 1 + words[:, :-1] % _GROUPS], 1)
    return words, before


def _tones(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    tone = rng.integers(7, size=(count, 8)).repeat(64, 1)
    phase = rng.uniform(0, 6, (count, 1)) + np.cumsum(0.1 + 0.12 * tone, 1)
    loud = rng.uniform(0.3, 1.5, (count, 8)).repeat(64, 1)
    wave = loud * np.sin(phase) + rng.normal(0, 0.4, phase.shape)
    return wave[:, None].astype(np.float32), tone[:, :: 512 // _FRAMES]


_SCALES = np.array([100.0, 10.0, 1.0, 0.1], np.float32)


def _table(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    x = rng.standard_normal((count, 12)).astype(np.float32)
    targets = (
        x[:, 0] * x[:, 1],
        np.sin(2 * x[:, 2]) + x[:, 3],
        abs(x[:, 4]) - x[:, 5],
        x[:, 6:9].prod(1),
    )
    return x, np.stack(targets, 1) * _SCALES + [500, 0, 20, 0]


def _classes(outputs: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs[-1], target)


def _likelihood(outputs: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    return functional.nll_loss(outputs[0].clamp_min(1e-9).log(), target)


def _rows(outputs: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs[0].flatten(0, 1), target.flatten())


def _mask(outputs: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy(outputs[0][:, 0], (target > 0).float())


def _squares(outputs: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    spread = target.std(0, keepdim=True) if target.ndim == 2 else target.std()
    return ((outputs[0] - target) / spread).square().mean()


def _found(outputs: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    boxes, scores = outputs
    kind, x, y, radius = target.T
    cell, rows = (y * 8).long() * 8 + (x * 8).long(), torch.arange(len(target))
    goal = torch.zeros_like(scores)
    goal[rows, cell, kind.long() % 5] = 1
    exact = 320 * torch.stack([x, y, 2 * radius, 2 * radius], 1)
    distance = functional.smooth_l1_loss(boxes[rows, cell] / 16, exact.float() / 16)
    return functional.binary_cross_entropy(scores, goal, reduction="sum") / len(target) + distance


def _accuracy(outputs: list[Array], target: Array) -> float:
    return float((outputs[-1].argmax(-1) == target).mean())


def _overlap(outputs: list[Array], target: Array) -> float:
    chosen = outputs[0].argmax(1) if outputs[0].shape[1] > 1 else outputs[0][:, 0] > 0.5
    goal = target if outputs[0].shape[1] > 1 else target > 0
    either = (chosen > 0) | (goal > 0)
    return float((chosen == goal)[either].mean())


def _explained(outputs: list[Array], target: Array) -> float:
    errors = ((outputs[0] - target) ** 2).mean(0) / target.var(0)
    return float(1 - errors.mean())


def _clearness(outputs: list[Array], target: Array) -> float:
    """Compute the PSNR in 50 dB."""
    return float(-10 * np.log10(((outputs[0] - target) ** 2).mean()) / 50)


def _detected(outputs: list[Array], target: Array) -> float:
    boxes, scores = outputs
    rows, best = np.arange(len(target)), scores.reshape(len(target), -1).argmax(1)
    (x, y, w, h), (kind, cx, cy, radius) = boxes[rows, best // 5].T, target.T
    ends = [
        (np.minimum(a + s / 2, 320 * (c + radius)) - np.maximum(a - s / 2, 320 * (c - radius)), s)
        for a, s, c in ((x, w, cx), (y, h, cy))
    ]
    common = np.prod([side.clip(0) for side, _ in ends], axis=0)
    iou = common / (abs(w * h) + (640 * radius) ** 2 - common)
    return float(((best % 5 == kind % 5) & (iou > 0.5)).mean())


def conv(
    i: int, o: int, k: int = 3, s: int = 1, g: int = 1, act: type[nn.Module] = nn.ReLU
) -> nn.Module:
    """Make a convolution with batch normalization and activation."""
    return nn.Sequential(
        nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o), act()
    )


class Residual(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        self.first, self.second = conv(i, o, 3, s), conv(o, o, act=nn.Identity)
        self.short = conv(i, o, 1, s, act=nn.Identity) if (i, 1) != (o, s) else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add both ways."""
        return torch.relu(self.second(self.first(x)) + self.short(x))


class Inverted(nn.Module):
    """Expand, depthwise, squeeze and excite, project."""

    def __init__(self, i: int, o: int, s: int, act: type[nn.Module]) -> None:
        super().__init__()
        wide, self.is_same = 4 * i, (i, 1) == (o, s)
        gate = nn.Hardsigmoid if act is nn.Hardswish else nn.Sigmoid
        self.body = nn.Sequential(conv(i, wide, 1, act=act), conv(wide, wide, 3, s, wide, act=act))
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, i, 1), act(), nn.Conv2d(i, wide, 1), gate()
        )
        self.out = conv(wide, o, 1, act=nn.Identity)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the gated block."""
        wide = self.body(x)
        result: torch.Tensor = self.out(wide * self.gate(wide))
        return x + result if self.is_same else result


class Attention(nn.Module):
    """A transformer's block, pre-normalized."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to all tokens."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class Transformer(nn.Module):
    """Words or patches, blocks, and classes of all tokens or of their mean."""

    def __init__(
        self, embed: nn.Module, tokens: int, classes: int, pooled: bool, width: int = 48
    ) -> None:
        super().__init__()
        self.embed, self.pooled = embed, pooled
        self.place = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.blocks = nn.Sequential(*(Attention(width, 4) for _ in range(2)), nn.LayerNorm(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the logits."""
        x = self.embed(x)
        x = self.blocks((x.flatten(2).transpose(1, 2) if x.ndim == 4 else x) + self.place)
        return self.head(x.mean(1) if self.pooled else x)


class Unet(nn.Module):
    """Two levels with shortcuts."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.down = conv(3, 16, 3, 2), nn.Sequential(conv(16, 32, 3, 2), conv(32, 32))
        self.deep, self.up = (
            nn.Sequential(conv(32, 48, 3, 2), conv(48, 48)),
            nn.Upsample(scale_factor=2),
        )
        self.join, self.merge = conv(80, 32), conv(48, 24)
        self.head = nn.Sequential(
            nn.Conv2d(24, classes, 1), nn.Sigmoid() if classes == 1 else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute a map of half the size."""
        first = self.first(x)
        down = self.down(first)
        joined = self.join(torch.cat([down, self.up(self.deep(down))], 1))
        return self.head(self.merge(torch.cat([first, self.up(joined)], 1)))


class Detector(nn.Module):
    """Boxes and scores of 64 cells."""

    def __init__(self) -> None:
        super().__init__()
        body = (
            conv(3, 16, 3, 2),
            Residual(16, 32, 2),
            Residual(32, 48, 2),
            nn.Upsample(scale_factor=2),
        )
        self.body = nn.Sequential(*body, conv(48, 48))
        self.boxes, self.scores = nn.Conv2d(48, 4, 1), nn.Conv2d(48, 5, 1)
        nn.init.constant_(self.scores.bias, -4)
        cells = (torch.arange(8) + 0.5) * 40
        self.register_buffer(
            "cells", torch.stack(torch.meshgrid(cells, cells, indexing="xy")).flatten(1).T
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute centres, sizes and probabilities."""
        x = self.body(x)
        boxes, scores = (part(x).flatten(2).transpose(1, 2) for part in (self.boxes, self.scores))
        places = torch.cat([self.cells + 40 * boxes[..., :2], 100 * boxes[..., 2:].exp()], -1)
        return places, scores.sigmoid()


class Embedder(nn.Module):
    """Normalized features and their classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            pooled(conv(3, 16, 3, 2), Residual(16, 32, 2), Residual(32, 48, 2))
        )
        self.features, self.head = nn.Linear(48, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute both outputs."""
        features = self.features(self.body(x))
        features = features / features.norm(dim=1, keepdim=True)
        return features, 10 * self.head(features)


class Thermometer(nn.Module):
    """A temperature in kelvin."""

    def __init__(self) -> None:
        super().__init__()
        body = (conv(3, 16, 3, 2), Residual(16, 32, 2), Residual(32, 32, 1))
        self.body, self.head = pooled(*body), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the temperature, a large bias included."""
        return 2 * self.head(self.body(x)) + 293


class Enlarger(nn.Module):
    """A picture of twice the size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(1, 24, 5), Residual(24, 24, 1), nn.Conv2d(24, 4, 3, padding=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add details."""
        return functional.pixel_shuffle(self.body(x) + x, 2)


class Listener(nn.Module):
    """Convolutions along time, a recurrent layer, and classes of frames."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 24, 16, 8, 4), nn.ReLU(), nn.Conv1d(24, 32, 5, 2, 2), nn.ReLU()
        )
        self.memory, self.head = nn.GRU(32, 32, batch_first=True), nn.Linear(32, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute logits of all frames."""
        return self.head(self.memory(self.body(x).transpose(1, 2))[0])


class Table(nn.Module):
    """Four targets of unlike size."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 4))
        self.body, self.scales = nn.Sequential(*layers), torch.from_numpy(_SCALES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the targets in their units."""
        return self.body(x) * self.scales + torch.tensor([500.0, 0, 20, 0])


def pooled(*layers: nn.Module) -> nn.Sequential:
    """Average over the places."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _mobile(act: type[nn.Module]) -> nn.Module:
    body = (Inverted(16, 24, 2, act), Inverted(24, 24, 1, act), Inverted(24, 40, 2, act))
    return nn.Sequential(pooled(conv(3, 16, 3, 2, act=act), *body), nn.Linear(40, 10))


def _plain() -> nn.Module:
    body = (
        conv(3, 16),
        nn.MaxPool2d(2),
        conv(16, 32),
        nn.MaxPool2d(2),
        conv(32, 48),
        nn.MaxPool2d(2),
    )
    head = (nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 10), nn.Softmax(1))
    return nn.Sequential(*body, nn.Flatten(), *head)


def _residual() -> nn.Module:
    body = (Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 48, 2))
    return nn.Sequential(pooled(conv(3, 16, 3, 2), *body), nn.Linear(48, 10))


def _words(classes: int, *, pooled: bool) -> nn.Module:
    return Transformer(nn.Embedding(_WORDS, 48), 16, classes, pooled)


def _patches() -> nn.Module:
    stem = nn.Sequential(conv(3, 24, 3, 2), nn.Conv2d(24, 48, 2, 2))
    return Transformer(stem, 64, 10, pooled=True)


_CLASSES = Task(_pictures, _classes, _accuracy)
_PIXELS = Task(_segments, _classes, _overlap)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Task]] = {
    "bert": (lambda: _words(_GROUPS, pooled=True), Task(_sentences, _classes, _accuracy)),
    "detector": (Detector, Task(_objects, _found, _detected)),
    "efficient": (lambda: _mobile(nn.SiLU), _CLASSES),
    "embedder": (Embedder, _CLASSES),
    "enlarger": (Enlarger, Task(_small_pictures, _squares, _clearness)),
    "listener": (Listener, Task(_tones, _rows, _accuracy)),
    "matte": (lambda: Unet(1), Task(_segments, _mask, _overlap)),
    "mobile": (lambda: _mobile(nn.Hardswish), _CLASSES),
    "plain": (_plain, Task(_pictures, _likelihood, _accuracy)),
    "residual": (_residual, _CLASSES),
    "segments": (lambda: Unet(6), _PIXELS),
    "table": (Table, Task(_table, _squares, _explained)),
    "tagger": (lambda: _words(_GROUPS + 1, pooled=False), Task(_tags, _rows, _accuracy)),
    "thermometer": (Thermometer, Task(_temperatures, _squares, _explained)),
    "vit": (_patches, _CLASSES),
}  # fmt: skip


def as_list(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """List the outputs."""
    return [result] if isinstance(result, torch.Tensor) else list(result)


def trained(name: str, folder: Path, seconds: float, seed: int) -> nn.Module:
    """Train a network, or load its weights from ``folder``."""
    make, task = NETWORKS[name]
    torch.manual_seed(seed)
    network, file = make(), folder / "weights.pt"
    if file.is_file():
        network.load_state_dict(torch.load(file))
        return network.eval()
    rng = np.random.default_rng(seed)
    x, y = map(torch.from_numpy, task.draw(rng, TRAINED))
    optimizer, start = torch.optim.AdamW(network.parameters()), time.monotonic()
    while (spent := (time.monotonic() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, 10 * spent) * (1 + math.cos(math.pi * spent))
        rows = torch.from_numpy(rng.integers(TRAINED, size=64))
        optimizer.zero_grad()
        task.loss(as_list(network(x[rows])), y[rows]).backward()
        optimizer.step()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), file)
    return network.eval()
