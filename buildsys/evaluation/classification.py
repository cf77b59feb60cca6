"""Metrics of one class per sample."""

from pathlib import Path

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation.batch import Batch
from buildsys.evaluation.metric import Metric, Outputs, Records
from buildsys.models.user_code import import_library
from buildsys.onnx_graphs.tensors import Array

_KEPT = 5  # classes per sample


class TopK(Metric):
    """The share of samples whose class is among the k with the highest scores."""

    is_binary = True
    k = 1
    title = "top-1"

    def _records(self, outputs: Outputs, batch: Batch) -> Records:
        logits = self._output(
            outputs, lambda a: a.ndim == 2 and a.dtype.kind == "f", "scores [batch, classes]"
        )
        count = logits.shape[1]
        if count <= self.k:
            raise StageError(f"{self.title} of {count} classes is always right", "use top1 or f1")
        labels = self._class_numbers(batch, count)
        classes = np.argsort(-logits, axis=1, kind="stable")[:, :_KEPT]
        scores = np.take_along_axis(self._probabilities(logits.astype(np.float32)), classes, axis=1)
        return {"classes": classes.astype(np.int32), "scores": scores, "label": labels}

    def _probabilities(self, scores: Array) -> Array:
        """Apply softmax to what are no probabilities yet, for people."""
        if scores.min(initial=0) >= 0 and scores.max(initial=0) <= 1:
            return scores
        with np.errstate(invalid="ignore"):  # infinite ones
            exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))

    def errors(self, records: Records) -> Array:
        hits = records["classes"][:, : self.k] == records["label"][:, None]
        return np.asarray(1.0 - hits.any(axis=1))

    def _value(self, records: Records) -> float:
        return 1 - super()._value(records)

    def describe(self, records: Records, row: int) -> tuple[str, str]:
        best = self._class_name(int(records["classes"][row, 0]))
        label = self._class_name(int(records["label"][row]))
        return f"{best} {records['scores'][row, 0]:.2f}", label

    def _per_class(self, records: Records) -> tuple[Array, Array]:
        counts = np.bincount(records["label"])
        wrong = np.bincount(records["label"], self.errors(records))
        return counts, 1 - wrong / np.maximum(counts, 1)


class Top5(TopK):
    """Top-5 accuracy."""

    k = 5
    title = "top-5"


class F1(TopK):
    """The mean of the F1 scores of all classes."""

    is_binary = False
    weighs_classes = True
    draws = 200
    title = "F1 (macro)"

    def _value(self, records: Records) -> float:
        return float(np.nanmean(self._per_class(records)[1]))

    def _per_class(self, records: Records) -> tuple[Array, Array]:
        label, predicted = records["label"], records["classes"][:, 0]
        classes = int(max(label.max(), predicted.max())) + 1
        rows = label[label == predicted], label, predicted
        hits, labels, predictions = (np.bincount(row, minlength=classes) for row in rows)
        return labels, 2 * hits / (labels + predictions)  # NaN without both


class Auroc(Metric):
    """The area under the ROC curve of two classes, by scikit-learn."""

    weighs_classes = True
    draws = 200
    title = "AUROC"
    undefined = "it needs samples of both classes"

    def _records(self, outputs: Outputs, batch: Batch) -> Records:
        scores = self._output(
            outputs,
            lambda a: a.dtype.kind == "f" and (a.ndim == 1 or (a.ndim == 2 and a.shape[1] <= 2)),
            "scores of two classes, [batch] or [batch, 2]",
        )
        scores = scores.reshape(len(scores), -1).astype(np.float64)
        scores = scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]
        return {"score": scores, "label": self._class_numbers(batch, 2)}

    def _value(self, records: Records) -> float:
        if len(np.unique(records["label"])) < 2:
            return np.nan
        metrics = import_library("sklearn.metrics", Path.cwd())
        return float(metrics.roc_auc_score(records["label"], records["score"]))

    def errors(self, records: Records) -> Array:
        return np.where(records["label"] == 1, -records["score"], records["score"])

    def describe(self, records: Records, row: int) -> tuple[str, str]:
        return f"{records['score'][row]:.3g}", self._class_name(int(records["label"][row]))
