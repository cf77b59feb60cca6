"""Records of models with known predictions."""

from pathlib import Path

import numpy as np

from buildsys.evaluation.batch import Batch
from buildsys.evaluation.metric import Metric, Records
from buildsys.evaluation.metrics import load_metric
from buildsys.onnx_graphs.tensors import Array

NOWHERE = Path("no-project")


def metric_of(name: str, **options: object) -> Metric:
    return load_metric(name, options, NOWHERE)


def records_of(metric: Metric, output: Array, labels: list[object]) -> Records:
    names = [f"{row}" for row in range(len(labels))]
    return metric.records({"out": np.asarray(output)}, Batch(names, {}, labels))


def classified(predictions: Array, labels: Array, classes: int = 3) -> Records:
    """Make the records of a classifier."""
    return records_of(
        metric_of("top1"), np.eye(classes, dtype=np.float32)[predictions], labels.tolist()
    )


def regressed(outputs: Array, labels: Array) -> Records:
    return records_of(metric_of("r2"), outputs, labels.tolist())


def drawn(name: str, rng: np.random.Generator, count: int, noise: float) -> Records:
    """Draw the records of a model whose predictions are changed in a share of samples."""
    labels = np.arange(count) % 2
    if name in ("top1", "f1"):
        return classified(np.where(rng.random(count) < noise, 1 - labels, labels), labels)
    if name == "auroc":
        scores = labels + rng.normal(size=count) * (1 + noise)
        return records_of(metric_of(name), scores, labels.tolist())
    return records_of(
        metric_of(name), labels + rng.normal(size=count) * (1 + noise), labels.tolist()
    )
