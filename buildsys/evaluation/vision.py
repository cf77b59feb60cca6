"""Metrics of segmented images and detected boxes."""

from pathlib import Path

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation.batch import Batch, Label
from buildsys.evaluation.metric import Metric, Outputs, Records, join_records
from buildsys.models.user_code import import_library
from buildsys.onnx_graphs.tensors import Array

_IGNORED = 255  # pixels without a class, as in Pascal VOC and Cityscapes
_MOST_CLASSES = 255  # of a network that outputs classes, not scores


class MeanIou(Metric):
    """The mean over classes of intersection over union, of all pixels."""

    draws = 200
    title = "mIoU"

    def _records(self, outputs: Outputs, batch: Batch) -> Records:
        output = self._output(
            outputs,
            lambda a: (a.ndim, a.dtype.kind) in ((4, "f"), (3, "i"), (3, "u")),
            "scores [batch, classes, height, width] or classes [batch, height, width]",
        )
        masks = output.argmax(axis=1) if output.ndim == 4 else output
        classes = output.shape[1] if output.ndim == 4 else len(self.classes) or _MOST_CLASSES
        rows = []
        for mask, label, name in zip(masks, batch.labels, batch.names, strict=True):
            truth = self._array(label, name, "iu", mask.shape)
            used = (truth != _IGNORED) | (classes > _IGNORED)
            truth, predicted = truth[used].astype(np.int64), mask[used].astype(np.int64)
            for values, what in ((truth, "label"), (predicted, "output")):
                if values.size and not 0 <= values.min() <= values.max() < classes:
                    problem = f"the {what} of sample {name} has classes outside of {classes}"
                    raise StageError(problem, f"correct them; {_IGNORED} is ignored in labels")
            counts = [truth[truth == predicted], truth, predicted]
            rows.append(np.stack([np.bincount(c, minlength=classes) for c in counts]))
        return {"pixels": np.array(rows)}

    def _value(self, records: Records) -> float:
        return float(np.nanmean(self._per_class(records)[1]))

    def errors(self, records: Records) -> Array:
        both, truth, _ = np.moveaxis(records["pixels"].sum(axis=2), 1, 0)
        return np.asarray(1 - both / np.maximum(truth, 1))

    def describe(self, records: Records, row: int) -> tuple[str, str]:
        names = map(self._class_name, np.flatnonzero(records["pixels"][row, 1]).tolist())
        return f"{1 - self.errors(records)[row]:.1%} of pixels right", ", ".join(names)

    def _per_class(self, records: Records) -> tuple[Array, Array]:
        both, truth, predicted = records["pixels"].sum(axis=0)
        return truth, both / (truth + predicted - both)


class MeanAveragePrecision(Metric):
    """COCO's mean average precision, by faster-coco-eval.

    Outputs are ``boxes`` [batch, n, 4], ``scores`` and ``labels`` [batch, n], or one of [batch, n,
    6] with score and label last; rows with the score 0 are no boxes. Labels are dicts of ``boxes``
    and ``labels``. Boxes are x1, y1, x2, y2.
    """

    title = "mAP 50-95"
    draws = 50  # each is an evaluation
    undefined = "it needs labels with boxes"
    thresholds = slice(None)

    def _records(self, outputs: Outputs, batch: Batch) -> Records:
        if {"boxes", "scores", "labels"} <= outputs.keys():
            columns = [outputs["boxes"], outputs["scores"][..., None], outputs["labels"][..., None]]
            rows = np.concatenate(columns, axis=2)
        else:
            form = "boxes, scores and labels, or rows [batch, n, 6]"
            rows = self._output(outputs, lambda a: a.ndim == 3 and a.shape[2] == 6, form)
        detections = np.where(rows[..., 4:5] == 0, np.nan, rows).astype(np.float32)
        labels = zip(batch.labels, batch.names, strict=True)
        truth = join_records([{"truth": self._truth(label, name)[None]} for label, name in labels])
        return {"detections": detections, **truth}

    def _truth(self, label: Label, name: str) -> Array:
        if not isinstance(label, dict) or not {"boxes", "labels"} <= label.keys():
            problem = f"the label of sample {name} has no boxes and labels"
            raise StageError(problem, "give {boxes: [[x1, y1, x2, y2]], labels: [class]}")
        boxes, labels = np.asarray(label["boxes"]), np.ravel(label["labels"]).tolist()
        boxes = boxes.reshape(0, 4) if not boxes.size else boxes
        if boxes.shape != (len(labels), 4) or boxes.dtype.kind not in "fiu":
            problem = f"sample {name} has {len(labels)} labels for boxes of {boxes.dtype}"
            raise StageError(f"{problem} {list(boxes.shape)}", "give x1, y1, x2, y2 for each label")
        count = len(self.classes) or np.iinfo(np.int32).max
        numbers = [self._class_number(number, count, name) for number in labels]
        return np.concatenate([boxes, np.reshape(numbers, (-1, 1))], axis=1, dtype=np.float64)

    def _precisions(self, records: Records) -> Array:
        """Compute the average precision of each class."""
        library = import_library("faster_coco_eval", Path.cwd())
        truth, detections = _flat(records["truth"]), _flat(records["detections"])
        keys = "id", "image_id", "category_id", "bbox", "area", "iscrowd"
        annotations = [
            dict(zip(keys, (number, int(image), int(label), box, box[2] * box[3], 0), strict=True))
            for number, (image, *box, label) in enumerate(truth.tolist(), 1)
        ]
        images = [{"id": number} for number in range(len(records["truth"]))]
        classes = [{"id": int(number), "name": ""} for number in np.unique(truth[:, -1])]
        coco = library.COCO({"images": images, "annotations": annotations, "categories": classes})
        about = {"print_function": lambda *_: None, "separate_eval": True}
        evaluation = library.COCOeval_faster(coco, coco.loadRes(detections), "bbox", **about)
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.params.maxDets = [100]
        evaluation.evaluate()
        evaluation.accumulate()
        precisions = evaluation.eval["precision"][self.thresholds, :, :, 0, 0]
        return np.asarray(np.where(precisions > -1, precisions, np.nan).mean(axis=(0, 1)))

    def _value(self, records: Records) -> float:
        if np.isnan(records["truth"]).all():
            return np.nan
        return float(np.nanmean(self._precisions(records)))

    def errors(self, records: Records) -> Array:
        return np.array(
            [_miss(*boxes) for boxes in zip(records["detections"], records["truth"], strict=True)]
        )

    def describe(self, records: Records, row: int) -> tuple[str, str]:
        detections, truth = records["detections"][row], records["truth"][row]
        best = detections[detections[:, 4] >= 0.5]
        texts = [f"{self._class_name(int(label))} {score:.2f}" for *_, score, label in best]
        names = [self._class_name(int(label)) for label in truth[:, 4][~np.isnan(truth[:, 4])]]
        return ", ".join(texts) or "no boxes", ", ".join(names) or "no boxes"

    def _per_class(self, records: Records) -> tuple[Array, Array]:
        labels = records["truth"][..., 4]
        counts = np.bincount(labels[~np.isnan(labels)].astype(int))
        values = np.zeros(len(counts))
        values[counts > 0] = self._precisions(records)
        return counts, values


class MeanAveragePrecision50(MeanAveragePrecision):
    """Mean average precision of boxes with half of the union in common."""

    title = "mAP 50"
    thresholds = slice(0, 1)


def _flat(boxes: Array) -> Array:
    """List image, x, y, width, height and further columns of all boxes."""
    image, place = np.nonzero(~np.isnan(boxes[..., 0]))
    rows = boxes[image, place].astype(np.float64)
    rows[:, 2:4] -= rows[:, :2]
    return np.concatenate([image[:, None], rows], axis=1)


def _miss(detections: Array, truth: Array) -> float:
    """Average 1 - score * IoU of each labelled box's best detection."""
    truth = truth[~np.isnan(truth[:, 0])]
    if not len(truth):
        return 0.0
    low = np.maximum(truth[:, None, :2], detections[None, :, :2])
    high = np.minimum(truth[:, None, 2:4], detections[None, :, 2:4])
    both = np.prod(np.maximum(high - low, 0), axis=2)
    areas = [np.prod(boxes[:, 2:4] - boxes[:, :2], axis=1) for boxes in (truth, detections)]
    ious = both / (areas[0][:, None] + areas[1] - both)
    hits = np.where(truth[:, None, 4] == detections[:, 5], detections[:, 4] * ious, 0.0)
    return float(1 - np.nan_to_num(hits).max(axis=1, initial=0).mean())
