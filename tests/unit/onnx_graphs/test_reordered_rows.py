"""Detections and rows of equal score, in any order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_checks import DETECTIONS, FP16, QUICK, check, detections, random, rows_of

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array


@given(st.integers(1, 40), st.integers(0, 10_000))
@QUICK
def test_detections_match_in_any_order(count: int, seed: int) -> None:
    y = detections(count, seed)
    x = rows_of(y, np.random.default_rng(seed).permutation(count))
    found = check(x, y, FP16, {"boxes": DETECTIONS})
    assert all(comparison.passed for comparison in found.values())
    assert {comparison.policy for comparison in found.values()} == {"detections"}
    assert found["boxes"].relative == 0


def test_no_detections_on_either_side_prove_nothing() -> None:
    y = rows_of(detections(3), slice(0))
    found = check(y, y, FP16, {"boxes": DETECTIONS})
    assert found["boxes"].uninformative == "it is empty"


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_detections_in_one_tensor_of_several_images(form: str) -> None:
    images = [detections(6, seed) for seed in range(3)]
    boxes = np.stack([image["boxes"] for image in images])
    if form != "xyxy":
        boxes[..., 2:] -= boxes[..., :2]
    if form == "cxcywh":
        boxes[..., :2] += boxes[..., 2:] / 2
    columns = [np.stack([image[name] for image in images]) for name in ("scores", "labels")]
    y = np.concatenate([boxes, np.stack(columns, axis=-1)], axis=-1).astype(np.float32)
    one = {"labels": None, "scores": None, "score_column": 4, "label_column": 5, "format": form}
    policy = {**DETECTIONS, **one}
    assert check({"y": y[:, ::-1]}, {"y": y}, FP16, {"y": policy})["y"].passed
    found = check({"y": y[[1, 0, 2]]}, {"y": y}, FP16, {"y": policy})["y"]
    assert "in image 0" in found.problem
    assert "in image 1" in found.problem


@pytest.mark.parametrize(
    ("output", "shape"),
    [
        ("boxes", (5, 3)),
        ("boxes", (4,)),
        ("scores", (5, 3)),
        ("labels", (5, 1)),
        ("labels", (4,)),
        ("masks", (4, 8)),
    ],
)
def test_outputs_that_are_no_detections_are_refused(output: str, shape: tuple[int, ...]) -> None:
    y = {**detections(5), "masks": random(5, 8), output: random(*shape)}
    with pytest.raises(StageError, match=r"output boxes has shape .* detections need") as caught:
        check(y, y, FP16, {"boxes": {**DETECTIONS, "rows": ("masks",)}})
    assert caught.value.hint == "correct outputs.boxes.compare"


@pytest.mark.parametrize(("column", "needed"), [(4, 5), (7, 8), (1, 4)])
def test_detections_have_all_named_columns(column: int, needed: int) -> None:
    one = {"labels": None, "scores": None, "score_column": column}
    y = random(20, 3, needed)
    assert check({"y": y}, {"y": y}, FP16, {"y": {**DETECTIONS, **one}})["y"].passed
    with pytest.raises(StageError, match=f"need \\[..., n, {needed}\\]"):
        check({"y": y[..., 1:]}, {"y": y[..., 1:]}, FP16, {"y": {**DETECTIONS, **one}})


def test_detections_of_another_kind_are_compared_as_they_are() -> None:
    y = {**detections(5), "masks": random(5, 8)}
    policy = {"boxes": {**DETECTIONS, "rows": ("masks",)}}
    for name, values, problem in (
        ("labels", y["labels"].astype(np.int32), "has type int32 instead of int64"),
        ("boxes", y["boxes"][:, :, None], "has shape [5, 4, 1] instead of [5, 4]"),
        ("scores", y["scores"][:4], "has shape [4] instead of [5]"),
        ("masks", y["masks"][:4], "has shape [4, 8] instead of [5, 8]"),
        ("scores", np.full(5, np.nan, np.float32), "5 of 5 elements are NaN or infinite"),
    ):
        found = check({**y, name: values}, y, FP16, policy)
        assert problem in found[name].problem
        assert {each for each in y if not found[each].passed} == {name}
    infinite = {**y, "scores": np.array([np.inf, 0.5, 0.4, 0.3, 0.2], np.float32)}
    assert not check(y, infinite, FP16, policy)["scores"].passed
    assert not check({**infinite, "labels": y["labels"] + 1}, infinite, FP16, policy)[
        "labels"
    ].passed


def test_each_output_with_boxes_has_its_own_detections() -> None:
    y, z = detections(5), {f"{name}2": values for name, values in detections(6, 1).items()}
    policies = {
        "boxes": DETECTIONS,
        "boxes2": {**DETECTIONS, "labels": "labels2", "scores": "scores2"},
    }
    x = {**rows_of(y, slice(None, None, -1)), **rows_of(z, slice(None, None, -1))}
    found = check(x, {**y, **z}, FP16, policies)
    assert {name: c.policy for name, c in found.items()} == dict.fromkeys(x, "detections")
    assert all(comparison.passed for comparison in found.values())


def test_further_rows_follow_the_match() -> None:
    y = {**detections(5), "masks": random(5, 1, 8, 8)}
    x = rows_of(y, [1, 0, 2, 4, 3])
    policy = {**DETECTIONS, "rows": ("masks",)}
    assert all(c.passed for c in check(x, y, FP16, {"boxes": policy}).values())
    x["masks"] = x["masks"][::-1]
    found = check(x, y, FP16, {"boxes": policy})
    assert [found[name].passed for name in ("boxes", "masks")] == [True, False]


# Rows of equal score without a policy


def test_rows_of_equal_score_may_swap() -> None:
    y = detections(10)
    y["scores"][3] = y["scores"][4]
    x = rows_of(y, [0, 1, 2, 4, 3, 5, 6, 7, 8, 9])
    found = check(x, y)
    assert all(comparison.passed for comparison in found.values())
    assert found["boxes"].note == "rows of equal score are in another order"


@pytest.mark.parametrize("with_scores", [True, False])
def test_wrong_outputs_of_another_length_do_not_hide_a_swap(with_scores: bool) -> None:
    y = detections(10)
    y["scores"][3] = y["scores"][4]
    x = rows_of(y, [0, 1, 2, 4, 3, 5, 6, 7, 8, 9])
    for count in (20, 21):
        y[f"wrong{count}"] = random(count, 2)
        x[f"wrong{count}"] = y[f"wrong{count}"] + 1
        if with_scores:
            x[f"sorted{count}"] = y[f"sorted{count}"] = detections(count)["scores"]
    found = check(x, dict(reversed(y.items())))  # the others first
    assert found["boxes"].passed
    assert found["boxes"].note == "rows of equal score are in another order"
    assert not found["wrong20"].passed


def test_rows_of_unequal_score_may_not_swap() -> None:
    y = detections(10)
    found = check(rows_of(y, [1, 0, *range(2, 10)]), y)
    assert not found["boxes"].passed
    assert not found["scores"].passed


def test_rows_of_every_length_may_swap() -> None:
    y = {}
    for suffix, count in (("", 4), ("2", 7), ("3", 1), ("4", 2)):
        values = detections(count, count)
        values["scores"][:] = 0.5
        y |= {f"{name}{suffix}": part for name, part in values.items()}
    y["wide"] = random(7, 65)  # too wide for the search of the order
    y["names"] = np.array(list("abcd"))
    x = {name: values[::-1] for name, values in y.items()}
    found = check(x, y, batch=9)  # so that one row is no sample
    assert all(comparison.passed for comparison in found.values())
    assert found["wide"].note == found["boxes"].note == "rows of equal score are in another order"
    assert found["boxes3"].note == ""
    x["wide"] = y["wide"]
    found = check(x, y)
    assert not found["boxes2"].passed
    assert found["boxes"].passed


def test_reordered_rows_have_the_limits_of_their_output() -> None:
    y = detections(10)
    y["boxes"] = np.linspace(0, 100, 40, dtype=np.float32).reshape(10, 4)
    y["scores"][:] = 0.5
    x = rows_of(y, slice(None, None, -1))
    assert check({**x, "boxes": x["boxes"] + np.float32(0.009)}, y)["boxes"].passed
    assert not check({**x, "boxes": x["boxes"] + np.float32(0.02)}, y)["boxes"].passed
    assert not check({**x, "labels": x["labels"] + 1}, y)["labels"].passed


@pytest.mark.parametrize(
    "values",
    [
        np.arange(10**6, 10**6 + 10),  # closer than any relative limit
        np.linspace(1e-6, 1e-5, 10, dtype=np.float32),
        random(10, 64),  # as wide as rows of the search may be
    ],
)
def test_the_other_rows_decide_the_order_of_equal_scores(values: Array) -> None:
    y = {"values": values, "scores": np.full(10, 0.5, np.float32), "none": random(10, 0)}
    found = check(rows_of(y, slice(None, None, -1)), y)
    assert all(comparison.passed for comparison in found.values())


def test_other_shapes_are_not_reordered() -> None:
    y = detections(10)
    for name in ("labels", "boxes"):
        found = check({**y, name: y[name][:9]}, y)
        assert {each for each in y if not found[each].passed} == {name}
    scalar = {**y, "count": np.array(3)}
    assert not check({**scalar, "count": np.array(4)}, scalar)["count"].passed


def test_samples_of_a_batch_may_not_swap() -> None:
    y = {"logits": random(4, 10), "ones": np.ones(4, np.float32)}
    x = rows_of(y, [1, 0, 2, 3])
    assert not check(x, y, batch=4)["logits"].passed
    assert check(x, y, batch=5)["logits"].passed


def test_rows_without_scores_may_not_swap() -> None:
    y = detections(4)
    y["scores"] = np.array([0.1, 0.1, 0.9, 0.9], np.float32)  # not sorted
    assert not check(rows_of(y, [1, 0, 2, 3]), y)["boxes"].passed
