"""A classifier of handwritten digits, and scikit-learn's data for it."""

import zlib
from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

WEIGHTS = Path(__file__).parents[1] / "weights" / "digits.pt"
TRAINED = 1000  # images for training and calibration; the other 797 are for evaluation


class Digits(nn.Sequential):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )


def trained() -> Digits:
    """Load the trained network."""
    if not WEIGHTS.exists():
        raise FileNotFoundError("weights/digits.pt is not made yet: run `python train.py`")
    network = Digits()
    network.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    return network.eval()


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Load shuffled images [n, 1, 8, 8] with values from 0 to 1, and their digits."""
    images, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = (images[order].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    return images, classes[order].astype(np.int64)


def examples(shape, dtype, which, seed):
    """Draw images for a shape case, or for the number of a calibration batch."""
    random = np.random.default_rng([seed, zlib.crc32(str(which).encode())])
    return digits()[0][random.integers(0, TRAINED, shape[0])].astype(dtype)


def evaluation():
    """Yield images that were not used in training, with their digits."""
    images, classes = digits()
    yield {"image": images[TRAINED:]}, classes[TRAINED:]
