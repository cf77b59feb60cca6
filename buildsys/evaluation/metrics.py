"""Metrics by name, and metrics of the project's own code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation import classification, regression, vision
from buildsys.evaluation.batch import Batch, label_list
from buildsys.evaluation.metric import Metric, Outputs, Records
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.tensors import Array

METRICS: dict[str, type[Metric]] = {
    "top1": classification.TopK, "top5": classification.Top5, "f1": classification.F1,
    "auroc": classification.Auroc, "rmse": regression.Rmse, "mae": regression.Mae,
    "r2": regression.R2, "perplexity": regression.Perplexity, "wer": regression.WordErrorRate,
    "cer": regression.CharacterErrorRate, "miou": vision.MeanIou,
    "map50_95": vision.MeanAveragePrecision, "map50": vision.MeanAveragePrecision50,
}  # fmt: skip
_LABEL = " label"  # not the name of an output


def load_metric(
    metric: str | Mapping[str, str], options: Mapping[str, Any], project: Path
) -> Metric:
    """Make the metric of a manifest: a name, or {python: FILE.py:FUNCTION}.

    Raises: StageError: there is no such metric, file or function.
    """
    if not isinstance(metric, str):
        return PythonMetric(metric["python"], options, project)
    return METRICS[metric](options)


class PythonMetric(Metric):
    """A function f(outputs, labels) of lists with an entry per sample, which returns a number.

    With the attribute ``per_sample = True`` it returns a number for each, and the metric is their
    mean; memory stays small. Also ``higher_is_better`` (default True) and ``is_share`` (default
    False: losses are relative to the original's value).
    """

    def __init__(self, reference: str, options: Mapping[str, Any], project: Path) -> None:
        """Load the function."""
        super().__init__(options)
        self._function = load_callable(reference, project)
        self.title, self._project = reference, project
        self.is_share = bool(getattr(self._function, "is_share", False))
        self.higher_is_better = bool(getattr(self._function, "higher_is_better", True))
        self._is_per_sample = bool(getattr(self._function, "per_sample", False))
        self.draws = 2000 if self._is_per_sample else 200
        self._shapes: list[tuple[int, ...]] = []

    def _records(self, outputs: Outputs, batch: Batch) -> Records:
        if self._is_per_sample:
            return {"score": self._call(outputs, batch.labels, (len(batch),))}
        shapes = [array.shape[1:] for array in outputs.values()]
        shapes += {np.shape(label) for label in batch.labels}
        self._shapes = self._shapes or shapes[: len(outputs) + 1]
        if shapes != self._shapes or any(isinstance(label, dict) for label in batch.labels):
            problem = f"{self.title} needs outputs and labels of one shape"
            raise StageError(problem, "let it return a number per sample, with per_sample = True")
        return {**outputs, _LABEL: np.array(batch.labels)}

    def _value(self, records: Records) -> float:
        if self._is_per_sample:
            return float(records["score"].mean())
        outputs = {name: array for name, array in records.items() if name != _LABEL}
        return float(self._call(outputs, label_list(records[_LABEL]), ()))

    def errors(self, records: Records) -> Array:
        if not self._is_per_sample:
            return np.zeros(len(records[_LABEL]))
        return -records["score"] if self.higher_is_better else records["score"]

    def describe(self, records: Records, row: int) -> tuple[str, str]:
        return (f"{records['score'][row]:.4g}" if self._is_per_sample else ""), ""

    def _call(self, outputs: Outputs, labels: Any, shape: tuple[int, ...]) -> Array:
        rows = [{name: array[row] for name, array in outputs.items()} for row in range(len(labels))]
        values = [next(iter(row.values())) for row in rows] if len(outputs) == 1 else rows
        with reraise_as_stage_error(f"{self.title} failed", self._project):
            result = np.asarray(self._function(values, labels), np.float64)
        if result.shape != shape:
            expected = f"{shape[0]} numbers" if shape else "a number"
            problem = f"{self.title} returns an array of shape {list(result.shape)}"
            raise StageError(problem, f"return {expected}, or set its attribute per_sample")
        return result
