"""A detector with TensorRT's own plugin for non-maximum suppression (docs/remedies/plugins.md)."""

from typing import Any

import torch
from torchvision.ops import batched_nms


class EfficientNMS(torch.autograd.Function):
    """Non-maximum suppression as the plugin computes it, and its node."""

    @staticmethod
    def forward(
        _: Any, boxes: torch.Tensor, scores: torch.Tensor, score: float, iou: float, most: int
    ) -> tuple[torch.Tensor, ...]:
        """Keep the best boxes of every class, at most ``most``."""
        batch = int(scores.shape[0])
        count = scores.new_zeros(batch, 1, dtype=torch.int32)
        kept_boxes, kept_scores = scores.new_zeros(batch, most, 4), scores.new_zeros(batch, most)
        kept_labels = count.new_zeros(batch, most)
        for image in range(batch):
            index, label = torch.nonzero(scores[image] > score, as_tuple=True)
            corners, value = boxes[image, index], scores[image, index, label]
            kept = batched_nms(corners, value, label, iou)[:most]
            count[image] = len(kept)
            kept_boxes[image, : len(kept)] = corners[kept]
            kept_scores[image, : len(kept)] = value[kept]
            kept_labels[image, : len(kept)] = label[kept].int()
        return count, kept_boxes, kept_scores, kept_labels

    @staticmethod
    def symbolic(g: Any, boxes: Any, scores: Any, score: float, iou: float, most: int) -> Any:
        """Write one node with the attributes of the plugin."""
        outputs = g.op(
            "trt::EfficientNMS_TRT",
            boxes,
            scores,
            score_threshold_f=score,
            iou_threshold_f=iou,
            max_output_boxes_i=most,
            background_class_i=-1,  # none
            score_activation_i=0,  # the scores are probabilities
            box_coding_i=0,  # corners
            plugin_version_s="1",
            outputs=4,
        )
        floats, integers = scores.type(), scores.type().with_dtype(torch.int32)
        outputs[0].setType(integers.with_sizes([None, 1]))
        outputs[1].setType(floats.with_sizes([None, most, 4]))
        outputs[2].setType(floats.with_sizes([None, most]))
        outputs[3].setType(integers.with_sizes([None, most]))
        return outputs


class Detector(torch.nn.Module):
    """Boxes of two classes in 16 cells."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = torch.nn.Conv2d(3, 16, 4, stride=4)
        self.head = torch.nn.Conv2d(16, 6, 1)
        self.prior = torch.nn.Parameter(torch.randn(16, 2))
        y, x = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
        self.register_buffer("centers", torch.stack([x, y], dim=-1).reshape(16, 2) * 4 + 2)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return count, boxes, scores and labels."""
        features = self.head(self.backbone(image).relu()).flatten(2).transpose(1, 2)
        center = self.centers + features[..., :2]
        half = 3 + 2 * features[..., 2:4].sigmoid()
        boxes = torch.cat([center - half, center + half], dim=2)
        scores = (features[..., 4:] + self.prior).sigmoid()
        kept: tuple[torch.Tensor, ...] = EfficientNMS.apply(boxes, scores, 0.4, 0.3, 20)
        return kept
