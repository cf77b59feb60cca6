"""A small text network on token ids and a mask of any length."""

from __future__ import annotations

import torch
from torch import nn


class TokenScorer(nn.Module):
    """Embed tokens, mix neighbors, and score tokens and sequence."""

    def __init__(self, vocabulary: int = 100, width: int = 32, classes: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, classes)

    def forward(self, ids: torch.Tensor, *, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return token scores and their mean, weighted by ``mask``."""
        weight = mask.unsqueeze(-1)
        tokens = self.embed(ids) * weight
        mixed = self.mix(tokens.transpose(1, 2)).transpose(1, 2)
        scores = self.score(self.norm(tokens + torch.relu(mixed))) * weight
        return {"tokens": scores, "mean": scores.sum(1) / (weight.sum(1) + 1.0)}
