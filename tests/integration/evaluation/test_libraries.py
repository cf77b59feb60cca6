"""Metrics against scikit-learn, torchmetrics, faster-coco-eval and jiwer on random data."""

import sys
from typing import Any

import jiwer
import numpy as np
import pytest
import torch
from evaluation_records import metric_of, records_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex
from torchmetrics.detection import MeanAveragePrecision
from torchmetrics.text import Perplexity

from buildsys.errors import StageError
from buildsys.evaluation.metric import Records, join_records
from buildsys.evaluation.statistics import paired_interval
from buildsys.onnx_graphs.tensors import Array
from buildsys.stages.evaluate.stage import find_flips

SEEDS = st.integers(0, 2**32 - 1)
some = settings(max_examples=25, deadline=None)


def value_of(name: str, output: Array, labels: list[Any]) -> float:
    metric = metric_of(name)
    return metric.value(records_of(metric, output, labels))


@some
@given(SEEDS, st.integers(2, 80), st.integers(7, 12))
def test_classification(seed: int, count: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(count, classes)).astype(np.float32)
    labels = rng.integers(0, classes, count)
    for name, k in (("top1", 1), ("top5", 5)):
        accuracy = MulticlassAccuracy(classes, top_k=k, average="micro")
        expected = accuracy(torch.tensor(scores), torch.tensor(labels))
        assert value_of(name, scores, labels.tolist()) == pytest.approx(float(expected))
    expected = sk.f1_score(labels, scores.argmax(1), average="macro")
    assert value_of("f1", scores, labels.tolist()) == pytest.approx(expected)
    metric = metric_of("f1")
    figures = metric.per_class(records_of(metric, scores, labels.tolist()))
    of_class = sk.f1_score(labels, scores.argmax(1), average=None, labels=np.unique(labels))
    assert [value for _, value in figures.values()] == pytest.approx(of_class)
    assert [count for count, _ in figures.values()] == np.bincount(labels)[
        np.unique(labels)
    ].tolist()


@some
@given(SEEDS, st.integers(2, 80), st.booleans())
def test_auroc(seed: int, count: int, has_ties: bool) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(count, 2)).round(0 if has_ties else 9)
    labels = np.append([0, 1], rng.integers(0, 2, count - 2))
    expected = sk.roc_auc_score(labels, scores[:, 1] - scores[:, 0])
    assert value_of("auroc", scores, labels.tolist()) == pytest.approx(expected)


@some
@given(SEEDS, st.integers(2, 60), st.integers(1, 4), st.sampled_from([0.0, 1e4]))
def test_regression(seed: int, count: int, width: int, offset: float) -> None:
    rng = np.random.default_rng(seed)
    output, labels = rng.normal(size=(2, count, width)) + offset
    errors = output.ravel(), labels.ravel()
    assert value_of("rmse", output, [*labels]) == pytest.approx(sk.root_mean_squared_error(*errors))
    assert value_of("mae", output, [*labels]) == pytest.approx(sk.mean_absolute_error(*errors))
    assert value_of("r2", output, [*labels]) == pytest.approx(sk.r2_score(labels, output))


@some
@given(SEEDS, st.integers(1, 4), st.integers(2, 5))
def test_miou(seed: int, count: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(count, classes, 5, 6)).astype(np.float32)
    labels = rng.choice([*range(classes), 255], (count, 5, 6))
    library = MulticlassJaccardIndex(classes, ignore_index=255)
    expected = float(library(torch.tensor(scores), torch.tensor(labels)))
    assert value_of("miou", scores, [*labels]) == pytest.approx(expected)
    assert value_of("miou", scores.argmax(1), [*labels]) == pytest.approx(expected)
    metric = metric_of("miou")
    ious = MulticlassJaccardIndex(classes, ignore_index=255, average="none")
    expected_of = ious(torch.tensor(scores), torch.tensor(labels)).tolist()
    for name, (_, value) in metric.per_class(records_of(metric, scores, [*labels])).items():
        assert value == pytest.approx(expected_of[int(name.split()[1])])


@some
@given(SEEDS, st.integers(1, 4), st.integers(2, 9))
def test_perplexity(seed: int, count: int, words: int) -> None:
    rng = np.random.default_rng(seed)
    scores = (rng.normal(size=(count, 7, words)) * 4).astype(np.float32)
    labels = rng.choice([*range(words), -100], (count, 7))
    labels[0, 0] = 0
    library = Perplexity(ignore_index=-100)
    expected = float(library(torch.tensor(scores), torch.tensor(labels)))
    assert value_of("perplexity", scores, [*labels]) == pytest.approx(expected, rel=1e-4)


@some
@given(st.lists(st.tuples(st.text("ab ", min_size=1), st.text("ab c")), min_size=1, max_size=6))
def test_error_rates_of_texts(pairs: list[tuple[str, str]]) -> None:
    references, texts = [f"a{label}" for label, _ in pairs], [text for _, text in pairs]
    output = np.array(texts, np.str_)
    assert value_of("wer", output, references) == pytest.approx(jiwer.wer(references, texts))
    assert value_of("cer", output, references) == pytest.approx(jiwer.cer(references, texts))


def test_texts_are_described_and_must_be_texts() -> None:
    metric = metric_of("wer")
    records = records_of(metric, np.array(["a cat", "a b"]), ["a hat", "a b"])
    assert metric.describe(records, 0) == ("a cat", "a hat")
    assert metric.errors(records).tolist() == [0.5, 0]
    joined = join_records([records, records_of(metric, np.array(["x" * 300]), ["y"])])
    assert metric.describe(joined, 2) == ("x" * 200, "y")
    with pytest.raises(StageError, match="label of sample 0 is of type int; WER needs texts"):
        records_of(metric, np.array(["a"]), [1])
    with pytest.raises(StageError, match="WER needs a text per sample; out is float64"):
        records_of(metric, np.zeros(1), ["a"])
    with pytest.raises(StageError, match="WER of these samples is nan; it needs labels with words"):
        metric.value(records_of(metric, np.array([""]), [""]))


@pytest.mark.parametrize(("name", "package"), [("wer", "jiwer"), ("map50", "faster_coco_eval")])
def test_a_missing_library_is_named(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    metric = metric_of(name)
    label = "a" if name == "wer" else {"boxes": [[0, 0, 9, 9]], "labels": [0]}
    output = np.array(["a"]) if name == "wer" else np.zeros((1, 1, 6))
    with pytest.raises(StageError, match=f"importing {package} failed: .*; pip install {package}"):
        metric.value(records_of(metric, output, [label]))


def detected(
    rng: np.random.Generator, count: int, noise: float = 6.0
) -> tuple[dict[str, Array], list[dict[str, Array]]]:
    """Draw labelled boxes, and detections near them or elsewhere."""
    labels = []
    outputs = {"boxes": np.zeros((count, 9, 4), np.float32)}
    outputs |= {key: np.zeros((count, 9), np.float32) for key in ("scores", "labels")}
    for image in range(count):
        boxes = rng.uniform(0, 200, (rng.integers(0, 5), 2))
        boxes = np.concatenate([boxes, boxes + rng.uniform(20, 90, boxes.shape)], axis=1)
        boxes = np.round(boxes * 4) / 4  # exact in float32
        labels.append({"boxes": boxes, "labels": rng.integers(0, 3, len(boxes))})
        outputs["scores"][image] = rng.uniform(0.05, 1, 9)
        outputs["labels"][image] = rng.integers(0, 3, 9)
        outputs["boxes"][image] = [5, 5, 40, 40]
        for row in range(len(boxes)):
            outputs["boxes"][image, row] = boxes[row] + np.round(rng.normal(0, noise, 4) * 4) / 4
            outputs["labels"][image, row] = labels[-1]["labels"][row]
    return outputs, labels


def detection_records(outputs: dict[str, Array], labels: list[Any], name: str) -> Records:
    rows = np.concatenate(
        [outputs["boxes"], outputs["scores"][..., None], outputs["labels"][..., None]], axis=2
    )
    return records_of(metric_of(name), rows, labels)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_mean_average_precision(seed: int) -> None:
    outputs, labels = detected(np.random.default_rng(seed), 20)
    library = MeanAveragePrecision(
        backend="faster_coco_eval",
        class_metrics=True,
        iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),  # COCO's; its own are of float32
        rec_thresholds=np.linspace(0, 1, 101).tolist(),
    )
    library.update(
        [
            {
                "boxes": torch.tensor(outputs["boxes"][image]),
                "scores": torch.tensor(outputs["scores"][image]),
                "labels": torch.tensor(outputs["labels"][image].astype(int)),
            }
            for image in range(20)
        ],
        [
            {
                "boxes": torch.tensor(label["boxes"], dtype=torch.float32),
                "labels": torch.tensor(label["labels"]),
            }
            for label in labels
        ],
    )
    expected = library.compute()
    for name, key in (("map50_95", "map"), ("map50", "map_50")):
        metric, records = metric_of(name), detection_records(outputs, labels, name)
        assert metric.value(records) == pytest.approx(float(expected[key]), abs=1e-6)
    figures = metric_of("map50_95").per_class(detection_records(outputs, labels, "map50_95"))
    assert [value for _, value in figures.values()] == pytest.approx(
        expected["map_per_class"].tolist(), abs=1e-6
    )
    assert sum(count for count, _ in figures.values()) == sum(
        len(label["labels"]) for label in labels
    )


def test_drawn_images_count_repeatedly() -> None:
    outputs, labels = detected(np.random.default_rng(4), 12)
    metric = metric_of("map50_95")
    records = detection_records(outputs, labels, "map50_95")
    for rows in np.random.default_rng(0).integers(0, 12, (4, 12)):
        repeated = detection_records(
            {key: array[rows] for key, array in outputs.items()},
            [labels[row] for row in rows],
            "map50_95",
        )
        assert metric.value_of_rows(records, rows) == pytest.approx(metric.value(repeated))


def test_images_without_boxes() -> None:
    metric = metric_of("map50")
    empty = {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, int)}
    box = {"boxes": [[0, 0, 10, 10]], "labels": [1]}
    nothing = np.full((2, 1, 6), np.nan, np.float32)
    with pytest.raises(StageError, match="the output out is NaN"):
        records_of(metric, nothing, [empty, box])
    records = records_of(metric, np.zeros((2, 0, 6), np.float32), [empty, box])
    assert metric.value(records) == 0.0
    unscored = [[[0, 0, 0, 0, 0, 0]], [[0, 0, 10, 10, 0, 1]]]
    assert metric.value(records_of(metric, np.array(unscored), [empty, box])) == 0.0
    with pytest.raises(StageError, match="mAP 50 of these samples is nan; it needs labels with"):
        metric.value(records_of(metric, np.zeros((2, 1, 6)), [empty, empty]))


def test_a_worse_detector_loses_and_its_worst_images_are_flips() -> None:
    rng = np.random.default_rng(9)
    outputs, labels = detected(rng, 60, noise=1.0)
    worse = {**outputs, "boxes": outputs["boxes"].copy()}
    worse["boxes"][:30] += 15
    metric = metric_of("map50_95")
    before, after = (detection_records(o, labels, "map50_95") for o in (outputs, worse))
    interval = paired_interval(metric, before, after)
    assert interval.low > 0.05
    assert interval.method == "paired bootstrap of 50 draws"
    flips = find_flips(metric, [f"{n}" for n in range(60)], before, after)
    assert flips
    assert all(int(flip["sample"]) < 30 and flip["change"] > 0 for flip in flips)
    assert metric.describe(before, int(flips[0]["sample"]))[1] == flips[0]["label"]
