"""A small single-shot detector that selects its best boxes itself."""

from __future__ import annotations

import torch
from torch import nn

from plugins.models.conv_blocks import conv_bn_relu

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Detector(nn.Module):
    """The ``best`` boxes and scores of a grid."""

    def __init__(self, classes: int = 4, best: int = 8) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            conv_bn_relu(3, 16, 3, padding=1),
            nn.MaxPool2d(2),
            nn.Dropout(0.1),
            conv_bn_relu(16, 32, 3, padding=1),
        )
        self.boxes = nn.Conv2d(32, 4, 1)
        self.classes = nn.Conv2d(32, classes, 1)
        self.best = best
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return boxes (batch, best, 4) and scores (batch, best) for 8-bit images."""
        features = self.backbone((image / 255 - self.mean) / self.std)
        boxes = self.boxes(features).flatten(2).transpose(1, 2)
        scores = torch.sigmoid(self.classes(features)).flatten(2).amax(1)
        found, places = scores.topk(self.best)
        return boxes.gather(1, places.unsqueeze(2).expand(-1, -1, 4)), found
