"""A classifier of short requests to a shop, and a generator of them."""

import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn

WEIGHTS = Path(__file__).parents[1] / "weights" / "requests.pt"
LENGTH = 10  # words; shorter requests end with zeros
TOPICS = (
    "invoice charged refund card payment price twice tax receipt",
    "parcel late delivery address courier lost tracking box shipped",
    "broken screen battery noise crash repair warranty stopped defect",
)
COMMON = "please my the was i have a since and order again not yesterday why it help after you"
VOCABULARY = {
    word: number for number, word in enumerate(" ".join((*TOPICS, COMMON)).split(), start=1)
}


class Requests(nn.Module):
    """The mean of embedded words through two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY) + 1, 32)
        self.layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, len(TOPICS)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Compute a score per topic."""
        return self.layers(self.embedding(tokens).mean(dim=1))


def trained() -> Requests:
    """Load the trained network."""
    if not WEIGHTS.exists():
        raise FileNotFoundError("weights/requests.pt is not made yet: run `python train.py`")
    network = Requests()
    network.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    return network.eval()


def texts(random: np.random.Generator, count: int) -> tuple[list[str], np.ndarray]:
    """Draw requests, about one in five of which also has words of other topics."""
    topics = random.integers(0, len(TOPICS), count)
    written = []
    for topic in topics:
        words = random.choice(COMMON.split(), 6).tolist()
        words += random.choice(TOPICS[topic].split(), random.integers(1, 3)).tolist()
        if random.random() < 0.2:
            words += random.choice(TOPICS[random.integers(len(TOPICS))].split(), 2).tolist()
        written.append(" ".join(random.permutation(words).tolist()))
    return written, topics


def tokens_of(written: list[str]) -> np.ndarray:
    """Convert words to numbers, as int64 [requests, 10]."""
    tokens = np.zeros((len(written), LENGTH), np.int64)
    for row, text in zip(tokens, written, strict=True):
        numbers = [VOCABULARY[word] for word in text.split()]
        row[: len(numbers)] = numbers
    return tokens


def examples(shape, dtype, which, seed):
    """Draw tokens for a shape case, or for the number of a calibration batch."""
    random = np.random.default_rng([seed, zlib.crc32(str(which).encode())])
    return tokens_of(texts(random, shape[0])[0]).astype(dtype)


def evaluation():
    """Yield 2,000 requests with their topics."""
    written, topics = texts(np.random.default_rng(1_000_000), 2000)
    yield {"tokens": tokens_of(written)}, topics
