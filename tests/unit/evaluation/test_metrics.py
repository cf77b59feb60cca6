"""Records and values of metrics, and the mistakes in outputs and labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_records import NOWHERE, classified, metric_of, records_of
from hypothesis import given
from hypothesis import strategies as st

from buildsys.errors import StageError
from buildsys.evaluation.batch import Batch
from buildsys.evaluation.metric import join_records
from buildsys.evaluation.metrics import METRICS, load_metric
from buildsys.stages.evaluate.stage import find_flips

FUNCTIONS = """
import numpy as np

def share(outputs, labels):
    return float(np.mean([o.argmax() == l for o, l in zip(outputs, labels)]))

def scores(outputs, labels):
    return [float(o.argmax() == l) for o, l in zip(outputs, labels)]

scores.per_sample = True
scores.is_share = True

def nan(outputs, labels):
    return float("nan")

def pair(outputs, labels):
    return [1.0, 2.0]
"""
NUMERIC = sorted(METRICS.keys() - {"wer", "cer", "map50", "map50_95"})
SEEDS = st.integers(0, 2**32 - 1)


def python_metric(folder: Path, name: str) -> Any:
    (folder / "own.py").write_text(FUNCTIONS)
    return load_metric({"python": f"own.py:{name}"}, {}, folder)


@given(SEEDS, st.integers(6, 12), st.integers(2, 60))
def test_top_k_counts_labels_among_the_largest_scores(seed: int, classes: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(count, classes)).astype(np.float32)
    labels = rng.integers(0, classes, count)
    ranks = (scores > np.take_along_axis(scores, labels[:, None], 1)).sum(1)
    for name, k in (("top1", 1), ("top5", 5)):
        metric = metric_of(name)
        value = metric.value(records_of(metric, scores, labels.tolist()))
        assert value == pytest.approx((ranks < k).mean())


@pytest.mark.parametrize("name", NUMERIC)
def test_resampled_values_are_values_of_the_drawn_rows(name: str) -> None:
    rng, metric, count = np.random.default_rng(3), metric_of(name), 40
    records = random_records(name, rng, count)
    rows = rng.integers(0, count, count)
    expected = metric.value({key: array[rows] for key, array in records.items()})
    assert metric.value_of_rows(records, rows) == pytest.approx(expected)


def random_records(name: str, rng: np.random.Generator, count: int) -> dict[str, Any]:
    labels: list[Any] = rng.integers(0, 2, count).tolist()
    output = rng.normal(size=(count, 2)).astype(np.float32)
    if name == "top5":
        output = rng.normal(size=(count, 9)).astype(np.float32)
    elif name in ("rmse", "mae", "r2"):
        labels = [*rng.normal(size=(count, 2))]
    elif name == "miou":
        output = rng.normal(size=(count, 3, 4, 4)).astype(np.float32)
        labels = [*rng.choice([0, 1, 255], (count, 4, 4))]
    elif name == "perplexity":
        output = rng.normal(size=(count, 6, 7)).astype(np.float32)
        labels = [*rng.choice([0, 3, 6, -100], (count, 6))]
    return records_of(metric_of(name), output, labels)


@pytest.mark.parametrize("name", NUMERIC)
def test_records_of_batches_are_those_of_all_samples(name: str) -> None:
    records = random_records(name, np.random.default_rng(1), 10)
    halves = slice(4), slice(4, None)
    parts = [{key: array[rows] for key, array in records.items()} for rows in halves]
    joined = join_records(parts)
    assert joined.keys() == records.keys()
    assert not any(array.dtype.hasobject for array in joined.values())  # saved without pickle
    assert all(np.array_equal(joined[key], records[key]) for key in records)


MISTAKES: list[tuple[str, Any, list[Any], str]] = [
    ("top1", np.zeros((2, 3)), [0, 3], "label 3 of sample b.jpg is not one of 3 classes"),
    ("top1", np.zeros((2, 3)), [0, -1], "label -1 of sample b.jpg is not one of 3 classes"),
    ("top1", np.zeros((2, 3)), ["cat", "dog"], "label of sample a.jpg is a name, cat"),
    ("top1", np.zeros((2, 3)), [0, 0.5], "label 0.5 of sample b.jpg is not one of 3 classes"),
    ("top1", np.zeros((2, 3)), [0, np.nan], "label nan of sample b.jpg is not one of 3 classes"),
    ("top1", np.zeros((2, 3, 4)), [0, 1], r"top-1 needs scores \[batch, classes\]; out is float64"),
    ("top1", np.zeros((2, 3), np.int64), [0, 1], r"out is int64 \[2, 3\]"),
    ("top1", np.zeros((3, 2)), [0, 1], r"output out has the shape \[3, 2\] for 2 samples"),
    ("rmse", np.zeros(()), [0, 1], r"output out has the shape \[\] for 2 samples"),
    ("top1", np.array([[0, 1], [0, np.nan]]), [0, 1], "the output out is NaN for sample b.jpg"),
    ("top5", np.zeros((2, 5)), [0, 1], "top-5 of 5 classes is always right"),
    ("auroc", np.zeros((2, 3)), [0, 1], "AUROC needs scores of two classes"),
    ("auroc", np.zeros(2), [0, 2], "label 2 of sample b.jpg is not one of 2 classes"),
    ("rmse", np.zeros((2, 3)), [np.zeros(3), np.zeros(2)], "label of sample b.jpg is float64"),
    ("rmse", np.zeros(2), ["1", "2"], "label of sample a.jpg is <U1"),
    ("miou", np.zeros((2, 3, 4, 4)), [np.zeros((4, 4), int), np.zeros((2, 2), int)], "b.jpg is"),
    ("miou", np.zeros((1, 3, 2, 2)), [np.full((2, 2), 3)], "label of sample a.jpg has classes"),
    ("perplexity", np.zeros((1, 3, 7)), [np.array([0, 1, 7])], "token of sample a.jpg is not one"),
    (
        "perplexity",
        np.zeros((1, 3, 7)),
        [np.array([0, 1])],
        r"label of sample a.jpg is int64 \[2\]",
    ),
    ("map50", np.zeros((1, 3, 6)), [3], "label of sample a.jpg has no boxes and labels"),
    (
        "map50",
        np.zeros((1, 3, 6)),
        [{"boxes": np.zeros((2, 4)), "labels": [1]}],
        r"sample a.jpg has 1 labels for boxes of float64 \[2, 4\]; give x1, y1, x2, y2",
    ),
    ("map50", np.zeros((1, 3, 6)), [{"boxes": np.zeros((1, 3)), "labels": [1]}], r"\[1, 3\]"),
    ("map50", np.zeros((1, 3, 6)), [{"boxes": [["a"] * 4], "labels": [1]}], "boxes of <U1"),
    ("map50", np.zeros((1, 3, 6)), [{"boxes": np.zeros((1, 4)), "labels": [-1]}], "label -1 of"),
]


@pytest.mark.parametrize(("name", "output", "labels", "problem"), MISTAKES)
def test_mistakes_are_a_sentence(name: str, output: Any, labels: list[Any], problem: str) -> None:
    batch = Batch(["a.jpg", "b.jpg"][: len(labels)], {}, labels)
    with pytest.raises(StageError, match=problem) as caught:
        metric_of(name).records({"out": output}, batch)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "labels", "problem"),
    [
        ("auroc", [1, 1], "AUROC of these samples is nan; it needs samples of both classes"),
        ("r2", [1.0, 1.0], "R² of these samples is -?(nan|inf); it needs labels that differ"),
    ],
)
def test_values_that_are_not_numbers_are_refused(
    name: str, labels: list[Any], problem: str
) -> None:
    metric = metric_of(name)
    with pytest.raises(StageError, match=problem):
        metric.value(records_of(metric, np.array([0.2, 0.3]), labels))


def test_one_of_several_outputs_is_named() -> None:
    batch, outputs = Batch(["a"], {}, [1]), {"x": np.zeros((1, 2)), "y": np.eye(2)[1:]}
    with pytest.raises(StageError, match=r"needs one output; there are x, y; name it in evaluate"):
        metric_of("top1").records(outputs, batch)
    metric = metric_of("top1", output="y")
    assert metric.value(metric.records({**outputs, "z": np.zeros(3)}, batch)) == 1.0
    with pytest.raises(StageError, match="the model has no output y; its outputs are x"):
        metric.records({"x": outputs["x"]}, batch)


def test_labels_may_be_names_of_classes() -> None:
    metric = metric_of("top1", classes=["cat", "dog"])
    records = records_of(metric, np.array([[0, 9.0], [0, 9.0]]), ["cat", "dog"])
    assert metric.describe(records, 0) == ("dog 1.00", "cat")
    assert metric.per_class(records) == {"cat": (1, 0.0), "dog": (1, 1.0)}
    with pytest.raises(StageError, match="label cow of sample 0 is not one of 2 classes"):
        records_of(metric, np.zeros((1, 2)), ["cow"])
    metric = metric_of("top1", classes=["1", "2", "30"])
    assert records_of(metric, np.eye(3), ["1", 30, 0])["label"].tolist() == [0, 2, 0]
    with pytest.raises(StageError, match="label 1 of sample 0 is a number and a name of a class"):
        records_of(metric, np.zeros((1, 3)), [1])


def test_labels_may_be_whole_floats() -> None:
    metric = metric_of("top1")
    assert metric.value(records_of(metric, np.array([[0, 9.0], [0, 9.0]]), [0.0, 1.0])) == 0.5


def test_scores_are_probabilities_or_become_some() -> None:
    metric = metric_of("top1")
    for scores, text in (([0.4, 0.6], "0.60"), ([2.4, 2.6], "0.55"), ([-1.0, 0.0], "0.73")):
        assert metric.describe(records_of(metric, np.array([scores]), [1]), 0)[0][-4:] == text


def test_flips_begin_with_what_the_engine_lost() -> None:
    labels = np.zeros(30, int)
    before = classified(np.where(np.arange(30) == 0, 1, 0), labels)
    after = classified(np.where(np.arange(30) % 10 == 5, 1, 0), labels)
    flips = find_flips(metric_of("top1"), [f"{n}.png" for n in range(30)], before, after)
    changes = {flip["sample"]: flip["change"] for flip in flips}
    assert [*changes.items()] == [("5.png", 1), ("15.png", 1), ("25.png", 1), ("0.png", -1)]
    texts = [flips[0][side][:7] for side in ("label", "original", "engine")]
    assert texts == ["class 0", "class 0", "class 1"]
    wrong = classified(1 - labels, labels)
    assert len(find_flips(metric_of("top1"), ["x"] * 30, before, wrong)) == 24


def test_flips_of_numbers_are_ordered_by_their_size() -> None:
    metric, labels = metric_of("mae"), [0.0, 0.0, 0.0, 0.0]
    before = records_of(metric, np.array([1.0, 5.0, 0.0, 2.0]), labels)
    after = records_of(metric, np.array([1.5, 1.0, 3.0, 2.0]), labels)
    flips = find_flips(metric, ["a", "b", "c", "d"], before, after)
    assert [(flip["sample"], flip["change"]) for flip in flips] == [("b", -4), ("c", 3), ("a", 0.5)]


def test_own_metrics_are_of_all_samples_or_of_one(tmp_path: Path) -> None:
    output, labels = np.eye(3)[[0, 1, 2, 2]], [0, 1, 2, 0]
    whole, single = (python_metric(tmp_path, name) for name in ("share", "scores"))
    for metric in (whole, single):
        records = join_records([records_of(metric, output, labels)] * 2)
        assert metric.value(records) == 0.75
        assert metric.value_of_rows(records, np.array([0, 0, 3, 4, 5, 6, 6, 7])) == 6 / 8
    assert (whole.is_share, single.is_share) == (False, True)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nan", "own.py:nan of these samples is nan"),
        ("pair", r"own.py:pair returns an array of shape \[2\]; return a number"),
    ],
)
def test_mistakes_of_own_metrics_are_a_sentence(tmp_path: Path, name: str, problem: str) -> None:
    metric = python_metric(tmp_path, name)
    with pytest.raises(StageError, match=problem):
        metric.value(records_of(metric, np.zeros((4, 2)), [0, 1, 2, 0]))


def test_own_metrics_of_all_samples_need_outputs_of_one_shape(tmp_path: Path) -> None:
    metric = python_metric(tmp_path, "share")
    records_of(metric, np.zeros((2, 3)), [0, 1])
    for width, labels in ((4, [0, 1]), (3, [0, np.zeros(2)]), (3, [[1], [2]]), (3, [{}, {}])):
        with pytest.raises(StageError, match="per_sample = True"):
            records_of(metric, np.zeros((2, width)), labels)


def test_an_unknown_function_is_a_sentence() -> None:
    with pytest.raises(StageError, match=r"own.py does not exist"):
        load_metric({"python": "own.py:f"}, {}, NOWHERE)
