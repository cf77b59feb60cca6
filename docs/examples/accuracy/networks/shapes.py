"""A detector of squares and crosses in noisy images, and a generator of them."""

import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn

WEIGHTS = Path(__file__).parents[1] / "weights" / "shapes.pt"
SIZE, CELL = 32, 4  # pixels
CELLS = SIZE // CELL


class Shapes(nn.Sequential):
    """Scores of both classes and distances of a box's edges, for each cell of a grid."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 6, 1),
        )


def trained() -> Shapes:
    """Load the trained network."""
    if not WEIGHTS.exists():
        raise FileNotFoundError("weights/shapes.pt is not made yet: run `python train.py`")
    network = Shapes()
    network.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    return network.eval()


def scenes(random: np.random.Generator, count: int) -> tuple[np.ndarray, list[dict[str, list]]]:
    """Draw images [count, 1, 32, 32] with a shape in the left, the right, or both halves."""
    images = random.uniform(0, 0.4, (count, 1, SIZE, SIZE))
    labels = []
    for (image,) in images:
        boxes, classes = [], []
        for left in random.choice([0, SIZE // 2], random.integers(1, 3), replace=False):
            width, kind = int(random.integers(6, 13)), int(random.integers(2))
            x, y = left + random.integers(0, 16 - width + 1), random.integers(0, SIZE - width + 1)
            shape = np.ones((width, width), bool)
            if kind:
                shape = abs(np.indices((width, width)) - (width - 1) / 2).min(axis=0) < width / 5
            image[y : y + width, x : x + width][shape] += random.uniform(0.3, 0.6)
            boxes.append([int(x), int(y), int(x) + width, int(y) + width])
            classes.append(kind)
        labels.append({"boxes": boxes, "labels": classes})
    return images.astype(np.float32), labels


def examples(shape, dtype, which, seed):
    """Draw images for a shape case, or for the number of a calibration batch."""
    random = np.random.default_rng([seed, zlib.crc32(str(which).encode())])
    return scenes(random, shape[0])[0].astype(dtype)


def evaluation():
    """Yield 300 images with their boxes and classes."""
    images, labels = scenes(np.random.default_rng(1_000_000), 300)
    yield {"image": images}, labels


def boxes_of(outputs):
    """Convert a grid [batch, 6, 8, 8] to the boxes of its local maxima."""
    grid = outputs["grid"]
    scores = 1 / (1 + np.exp(-grid[:, :2]))
    best, labels = scores.max(axis=1), scores.argmax(axis=1)
    around = np.pad(best, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(1, 2))
    best = np.where(best == windows.max(axis=(3, 4)), best, 0.0)
    y, x = (np.indices((CELLS, CELLS)) + 0.5) * CELL
    edges = [x - grid[:, 2] * CELL, y - grid[:, 3] * CELL]
    edges += [x + grid[:, 4] * CELL, y + grid[:, 5] * CELL]
    boxes = np.stack(edges, axis=-1)
    rows = len(grid), CELLS * CELLS
    return {
        "boxes": boxes.reshape(*rows, 4),
        "scores": best.reshape(rows),
        "labels": labels.reshape(rows),
    }
