"""Train the networks of docs/accuracy.md on a CPU, in seconds: python train.py [NAME ...]."""

import importlib
import sys
from collections.abc import Callable

import numpy as np
import torch
from networks import digits, requests, shapes
from torch import Tensor, nn


def train_digits() -> nn.Module:
    """Train the classifier of digits."""
    images, classes = (torch.from_numpy(array[: digits.TRAINED]) for array in digits.digits())
    return fit(digits.Digits(), images, classes, nn.functional.cross_entropy, epochs=12)


def train_requests() -> nn.Module:
    """Train the classifier of requests."""
    written, topics = requests.texts(np.random.default_rng(0), 4000)
    tokens = torch.from_numpy(requests.tokens_of(written))
    classes = torch.from_numpy(topics)
    return fit(requests.Requests(), tokens, classes, nn.functional.cross_entropy, epochs=8)


def train_shapes() -> nn.Module:
    """Train the detector: the cell of a box's center has its class and edges."""
    images, labels = shapes.scenes(np.random.default_rng(0), 3000)
    goals = np.zeros((len(images), 6, shapes.CELLS, shapes.CELLS), np.float32)
    for goal, label in zip(goals, labels, strict=True):
        for box, kind in zip(label["boxes"], label["labels"], strict=True):
            low, high = np.split(np.array(box) / shapes.CELL, 2)
            x, y = ((low + high) / 2).astype(int)
            center = np.array([x, y]) + 0.5
            goal[kind, y, x] = 1
            goal[2:, y, x] = [*(center - low), *(high - center)]

    def loss(grid: Tensor, goal: Tensor) -> Tensor:
        has_box = goal[:, :2].sum(dim=1, keepdim=True)
        scores = nn.functional.binary_cross_entropy_with_logits(
            grid[:, :2], goal[:, :2], reduction="sum"
        )
        edges = ((grid[:, 2:] - goal[:, 2:]).abs() * has_box).sum()
        return (scores + edges) / len(grid)

    return fit(shapes.Shapes(), torch.from_numpy(images), torch.from_numpy(goals), loss, epochs=12)


def fit(
    network: nn.Module,
    inputs: Tensor,
    goals: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    epochs: int,
) -> nn.Module:
    """Minimize a loss by Adam, with a falling rate."""
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    batches = range(0, len(inputs), 50)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, epochs * len(batches))
    for _ in range(epochs):
        order = torch.randperm(len(inputs))
        for start in batches:
            rows = order[start : start + 50]
            optimizer.zero_grad()
            loss(network(inputs[rows]), goals[rows]).backward()
            optimizer.step()
            schedule.step()
    return network


def main(names: list[str]) -> None:
    """Train the networks, and write their weights."""
    torch.set_num_threads(1)
    trainers = {"digits": train_digits, "shapes": train_shapes, "requests": train_requests}
    for name in names or trainers:
        torch.manual_seed(0)
        network = trainers[name]()
        file = importlib.import_module(f"networks.{name}").WEIGHTS
        file.parent.mkdir(exist_ok=True)
        torch.save(network.state_dict(), file)
        sys.stdout.write(f"wrote weights/{file.name}, {file.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
