"""Comparison of a case's outputs by policy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_checks import FP16, FP32, QUICK, check, check_one, random
from yaml import safe_load

from buildsys.errors import StageError
from buildsys.manifest.default_limits import AGREEMENT_LIMITS, DEFAULT_LIMITS
from buildsys.onnx_graphs.output_policies import (
    compare_outputs,
    load_assembled,
    load_empty,
    uninformative_outputs,
)
from buildsys.onnx_graphs.tensor_comparison import Comparison, compare
from buildsys.onnx_graphs.tensors import Array, tensor_of
from buildsys.stages.common.difference_hints import uninformative_changes

# Small channels next to large ones


def boxes_and_scores(seed: int = 0) -> Array:
    stream = np.random.default_rng(seed)
    boxes, scores = stream.uniform(0, 640, (1, 300, 4)), stream.uniform(0, 1, (1, 300, 80))
    return np.concatenate([boxes, scores], axis=2).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_wrong_channel_is_found_on_any_axis(axis: int) -> None:
    y = np.moveaxis(boxes_and_scores(), 2, axis)
    x = y.copy()
    place = [3, 3, 3]
    place = [0 if size == 1 else 5 for size in y.shape]
    place[axis] = 20
    x[tuple(place)] += 0.3
    assert not compare(x, y, FP16).passed


def test_rounding_errors_of_large_channels_are_excused_in_small_ones() -> None:
    y = random(4, 64, 7, 7)
    y[:, 11] *= 1e-4  # a nearly dead channel of a feature map
    noise = random(4, 64, 7, 7, seed=1) * 1e-3 * 4
    found = compare(y + noise, y, FP16)
    assert found.passed
    assert "slice 11 of axis 1" in found.note


def test_errors_of_small_parts_of_an_assembled_output_are_not_excused() -> None:
    y = boxes_and_scores()
    x = y.copy()
    x[..., :4] += 0.6  # rounding of boxes in float16
    x[0, 7, 40] += 0.4
    assert compare(x, y, FP16).passed
    found = compare(x, y, FP16, assembled=True)
    assert not found.passed
    assert found.worst_index == (0, 7, 40)
    assert check({"y": x}, {"y": y}, FP16)["y"].passed
    assert not check({"y": x}, {"y": y}, FP16, assembled=["y"])["y"].passed
    x[0, 7, 40] = y[0, 7, 40]
    assert compare(x, y, FP16, assembled=True).passed


def test_the_assembled_outputs_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "assembled.json"
    file.write_text(json.dumps({"outputs": ["a", "b"]}))
    assert load_assembled(file) == ["a", "b"]
    assert load_assembled(None) == []
    assert load_empty(file) == load_empty(None) == {}


def test_the_shape_is_enough_for_an_output_without_elements(tmp_path: Path) -> None:
    file = tmp_path / "assembled.json"
    file.write_text(json.dumps({"outputs": [], "empty": ["y"]}))
    empty = np.zeros((2, 0), np.float32)
    compared = check({"y": empty}, {"y": empty}, FP16, load_empty(file))
    assert uninformative_outputs([compared]) == {}
    assert compared["y"].note == "it is empty, as allowed"
    assert not check({"y": empty[:1]}, {"y": empty}, FP16, load_empty(file))["y"].passed


@given(st.integers(0, 10_000), st.floats(1e-3, 1e3))
@QUICK
def test_equal_noise_everywhere_passes(seed: int, spread: float) -> None:
    # scales of slices without gaps, errors below the limit of the whole output
    stream = np.random.default_rng(seed)
    scales = np.exp(stream.uniform(0, np.log(1 + spread), (1, 32, 1)))
    y = stream.standard_normal((4, 32, 5)) * scales
    x = y + np.abs(y).max() * 5e-5 * stream.uniform(-1, 1, y.shape)
    assert compare(x, y, FP32).passed


# Policies


def test_elementwise_compares_small_elements_with_their_own_size() -> None:
    y = np.array([1000.0, 1.0, 0.5], np.float32)
    x = np.array([1000.0, 1.0, 0.51], np.float32)
    assert compare(x, y, FP32).passed
    policy = {"policy": "elementwise", "rtol": None, "atol": 1e-3}
    found = check_one(x, y, FP32, **policy)
    assert (found.passed, found.policy, found.worst_index) == (False, "elementwise", (2,))
    assert "1 of 3 elements differ by more than 0.0001 of the reference + 0.001" in found.problem
    assert check_one(x, y, FP32, **{**policy, "atol": 0.02}).passed
    assert check_one(x, y, FP32, **{**policy, "rtol": 0.05}).passed


def test_elementwise_allows_a_share_of_the_root_mean_square() -> None:
    y = np.array([3.0, 4.0, 0.0, 0.0])  # 2.5
    policy = {"policy": "elementwise", "rtol": 0.125, "atol": None}
    found = check_one(np.add(y, [0, 0, 0, 0.3125]), y, FP32, **policy)  # the limit itself
    assert found.passed
    found = check_one(np.add(y, [0.6, 0, 0.313, 0.4]), y, FP32, **policy)
    assert (found.passed, found.worst_index) == (False, (3,))
    assert "2 of 4 elements differ by more than 0.125 of the reference + 0.312" in found.problem
    for scale in (1e200, 1e-200):
        assert check_one((y + 0.3) * scale, y * scale, FP32, **policy).passed
        assert not check_one((y + 1) * scale, y * scale, FP32, **policy).passed
    zeros = np.zeros(2)
    assert check_one(zeros, zeros, FP32, **policy).passed
    assert not check_one(zeros + 1e-30, zeros, FP32, **policy).passed


def test_without_a_relative_limit_nothing_is_allowed() -> None:
    y = random(10)
    none: dict[str, Any] = {"policy": "elementwise", "rtol": None, "atol": None}
    for limits in ({"cosine": 0.5}, {"rtol": None}):
        assert check_one(y, y, limits, **none).passed  # type: ignore[arg-type]
        assert not check_one(y * 1.01, y, limits, **none).passed  # type: ignore[arg-type]


INFINITIES = {
    "elementwise": {"rtol": 0.01, "atol": None},
    "per_channel": {"rtol": 0.01, "atol": None, "axis": 1},
    "top_k": {"rtol": 0.01, "k": 2, "axis": -1, "agreement": 1.0},
    "tokens": {"rtol": 0.01, "agreement": 1.0},
    "set": {"rtol": 0.01, "atol": None, "axis": 0},
}


@pytest.mark.parametrize("policy", INFINITIES)
def test_equal_infinities_do_not_widen_the_limits(policy: str) -> None:
    """As those of masked logits."""
    y = np.array([[-np.inf, 1.0, 2.0, 3.0], [5.0, 4.0, -np.inf, 1.0]]) * 1e-3
    fields = {"policy": policy, **INFINITIES[policy]}
    assert check_one(y + 1e-6, y, FP32, **fields).passed
    x = y.copy()
    x[1, 0] -= 3e-3  # another token, in a channel with an infinity
    found = check_one(x, y, FP32, **fields)
    assert not found.passed
    assert found.worst_index in (None, (1, 0))


def test_a_correct_policy_replaces_the_verdict_and_the_note() -> None:
    y = random(4, 64, 7, 7)
    y[:, 11] *= 1e-4
    x = y + random(4, 64, 7, 7, seed=1) * 4e-3
    assert compare(x, y, FP16).note
    found = check_one(x, y, FP16, policy="elementwise", rtol=0.1, atol=0.1)
    assert (found.passed, found.note, found.policy) == (True, "", "elementwise")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_overflowing_difference_is_a_difference(dtype: type) -> None:
    y = np.array([np.finfo(dtype).max, 1.0], dtype)
    assert not check_one(-y, y, FP32, policy="elementwise", rtol=None, atol=1.0).passed


def test_elements_without_a_distance_must_be_equal() -> None:
    y = np.array(["a", "b", "c"])
    x = np.array(["a", "x", "c"])
    policy = {"rtol": 1.0, "atol": 9.0, "axis": 0, "k": 1}
    assert check_one(y, y, FP32, policy="elementwise", **policy).passed
    found = check_one(x, y, FP32, policy="elementwise", **policy)
    assert "1 of 3 elements differ, the first at [1]; at least 1 must agree" in found.problem
    assert "1 of 3 tokens" in check_one(x, y, FP32, policy="tokens", agreement=1.0).problem


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_integers_have_distances_with_a_policy(dtype: type) -> None:
    y = np.array([100, 50], dtype)
    x = np.array([101, 49], dtype)
    assert not check_one(x, y, FP32, policy="auto").passed
    assert check_one(x, y, FP32, policy="elementwise", rtol=0.0, atol=1.0).passed
    assert not check_one(x, y, FP32, policy="elementwise", rtol=0.0, atol=0.9).passed


def test_per_channel_compares_each_channel_with_its_own_size() -> None:
    y = random(2, 3, 50) * np.array([1.0, 100.0, 1e-3], np.float32)[:, None]
    x = y.copy()
    x[1, 2, 7] += 1e-4
    found = check_one(x, y, FP32, policy="per_channel", axis=1, rtol=None, atol=None)
    assert (found.passed, found.worst_index) == (False, (1, 2, 7))
    assert "channel 2 of axis 1 is off by 0.0001" in found.problem
    assert check_one(
        y * 1.00005, y, FP32, policy="per_channel", axis=1, rtol=None, atol=None
    ).passed
    assert check_one(x, y, FP32, policy="per_channel", axis=1, rtol=None, atol=2e-4).passed


def test_per_channel_reports_the_channel_that_is_off_most() -> None:
    y = np.array([[100.0, 1.0, 0.0], [50.0, 0.5, 0.0]])
    x = np.add(y, [[20.0, 0.5, 0.0], [0.0, 0.0, 0.0]])
    policy = {"policy": "per_channel", "rtol": 0.125, "atol": None}
    for axis in (1, -1):
        found = check_one(x, y, FP32, axis=axis, **policy)
        assert found.worst_index == (0, 1)
        assert "channel 1 of axis 1 is off by 0.5; its largest value is 1, allowed are 0.125" in (
            found.problem
        )
    for axis in (0, -2):
        assert "channel 0 of axis 0" in check_one(x, y, FP32, axis=axis, **policy).problem
    assert check_one(
        np.add(y, [[12.5, 0.125, 0.0]]), y, FP32, axis=1, **policy
    ).passed  # the limit itself
    dead = check_one(np.add(y, [[0.0, 0.9, 1e-3]]), y, FP32, axis=1, **policy)
    assert dead.worst_index == (0, 2)


@pytest.mark.parametrize("policy", ["per_channel", "top_k", "set"])
@pytest.mark.parametrize(("shape", "axis"), [((2, 3), 2), ((2, 3), -3), ((3,), 1), ((), 0)])
def test_an_axis_outside_the_shape_is_an_error(
    policy: str, shape: tuple[int, ...], axis: int
) -> None:
    options = {"rtol": None, "atol": None, "k": 1, "agreement": 1.0}
    with pytest.raises(StageError) as caught:
        check_one(np.ones(shape), np.ones(shape), FP32, policy=policy, axis=axis, **options)
    assert str(caught.value) == (
        f"output y has shape {list(shape)}, but its comparison has axis {axis};"
        " correct outputs.y.compare"
    )


def test_a_single_token_needs_no_axis() -> None:
    logit, token = np.array(3.0), np.array(3)
    assert check_one(logit + 1, logit, FP32, policy="tokens", agreement=1.0).passed  # the largest
    assert not check_one(token + 1, token, FP32, policy="tokens", agreement=1.0).passed


@pytest.mark.parametrize(("axis", "moved"), [(-1, 2), (2, 2), (0, 0), (-3, 0), (1, 1)])
def test_top_k_is_of_each_row_of_its_axis(axis: int, moved: int) -> None:
    y = np.array([[[8.0, 4.0, 2.0, 1.0]], [[4.0, 16.0, 2.0, 1.0]], [[4.0, 2.0, 0.5, 1.0]]])
    policy = {"policy": "top_k", "k": 2, "axis": axis, "rtol": 0.125, "agreement": 0.6}

    def check_rows(x: Array, **changes: Any) -> Comparison:
        x, y_ = (np.moveaxis(values, 2, moved) for values in (x, y))
        return check_one(x, y_, FP32, **{**policy, **changes})

    x = y.copy()
    x[0, 0, 0] += 1.0  # an eighth of 8
    x[1, 0, :3] -= [0.0, 2.0, 1.0]
    x[2, 0, 1:] += [0.0, 1.0, 0.25]
    assert check_rows(x, agreement=1.0).passed
    x[2, 0, 0] += 0.51
    found = check_rows(x)
    assert found.passed
    found = check_rows(x, agreement=0.67)
    assert "1 of 3 rows have another top 2, the first at [2]; at least 0.67" in found.problem
    assert not check_rows(y[:, :, [0, 2, 1, 3]], agreement=1.0).passed
    assert check_rows(y, k=9, agreement=1.0).passed


def test_top_k_names_the_row_of_a_middle_axis() -> None:
    y = random(3, 4, 5)
    x = y.copy()
    x[1, 3, 2] += 9.0
    found = check_one(x, y, FP32, policy="top_k", k=4, axis=1, rtol=None, agreement=1.0)
    assert "1 of 15 rows have another top 4, the first at [7]" in found.problem


def test_an_entry_a_little_below_the_top_may_be_chosen() -> None:
    y = np.array([[8.0, 4.0, 3.0]])
    policy = {"axis": -1, "rtol": 0.125, "agreement": 1.0}
    assert check_one(y[:, [0, 2, 1]], y, FP32, policy="top_k", k=2, **policy).passed
    y = np.array([[8.0, 7.0, 1.0], [1.0, 0.8, 1.0]])
    assert check_one(y[:, [1, 0, 2]][:1], y[:1], FP32, policy="tokens", **policy).passed
    found = check_one(y[:, [1, 0, 2]] - [0, 0, 2], y, FP32, policy="tokens", **policy)
    assert "1 of 2 tokens differ, the first at [1]; at least 1 must agree" in found.problem


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_tokens_must_be_equal(dtype: type) -> None:
    y = np.arange(40, dtype=dtype).reshape(2, 20)
    x = y.copy()
    assert check_one(x, y, FP32, policy="tokens", agreement=1.0).passed
    x[1, 3] += 1
    found = check_one(x, y, FP32, policy="tokens", agreement=1.0)
    assert "1 of 40 tokens differ, the first at [1, 3]" in found.problem
    assert check_one(x, y, FP32, policy="tokens", agreement=0.9).passed


def test_tokens_of_logits_are_their_largest_entries() -> None:
    y = random(2, 6, 50)
    assert check_one(y * 3, y, FP32, policy="tokens", agreement=1.0).passed
    x = y.copy()
    x[1, 2] = -x[1, 2]
    assert not check_one(x, y, FP32, policy="tokens", agreement=1.0).passed


@given(st.integers(0, 10_000))
@QUICK
def test_a_set_is_compared_in_any_order(seed: int) -> None:
    stream = np.random.default_rng(seed)
    y = stream.integers(0, 3, (2, 12, 4)).astype(np.float32)  # with equal rows
    x = y[:, stream.permutation(12)] + 1e-5
    policy = {"policy": "set", "axis": 1, "rtol": None, "atol": None}
    assert check_one(x, y, FP32, **policy).passed
    x[1, 5, 2] += 0.5
    assert not check_one(x, y, FP32, **policy).passed


@pytest.mark.parametrize(("axis", "order"), [(0, 0), (-3, 0), (1, 1), (-2, 1), (2, 2)])
def test_a_set_may_be_along_any_axis(axis: int, order: int) -> None:
    y = random(3, 4, 5)
    policy = {"policy": "set", "axis": axis, "rtol": 1e-3, "atol": None}
    assert check_one(np.flip(y, order), y, FP32, **policy).passed
    assert not check_one(np.flip(y, (order + 1) % 3), y, FP32, **policy).passed


def test_columns_of_a_set_have_their_own_limits() -> None:
    y = np.array([[100.0, 1.0], [50.0, 0.5]])
    policy = {"policy": "set", "axis": 0, "rtol": 0.125, "atol": None}
    assert check_one(np.add(y, [12.5, 0.125]), y, FP32, **policy).passed
    assert not check_one(np.add(y, [0.0, 0.13]), y, FP32, **policy).passed
    assert check_one(np.add(y, [0.0, 0.13]), y, FP32, **{**policy, "atol": 0.01}).passed


def test_a_row_of_a_set_counts_once() -> None:
    y = np.array([[1.0], [2.0]], np.float32)
    x = np.array([[1.0], [1.0]], np.float32)
    found = check_one(x, y, FP32, policy="set", axis=0, rtol=None, atol=None)
    assert "1 of 2 rows of the reference have no counterpart, the first is row 1" in found.problem


@pytest.mark.parametrize("policy", ["elementwise", "per_channel", "top_k", "tokens", "set"])
def test_no_policy_accepts_nan_another_shape_or_another_type(policy: str) -> None:
    fields = {"axis": 0, "rtol": 1.0, "atol": 1e9, "k": 1, "agreement": 0.0}
    y = random(3, 4)
    for x in (y[:2], y.astype(np.float64), np.where(y == y.max(), np.nan, y)):
        assert not check_one(x, y, FP32, policy=policy, **fields).passed


# Uninformative outputs


def test_integers_may_differ_at_their_alternatives_only() -> None:
    rows = {"y": np.array([[1, 4, 4, 0], [1, 5, 5, 0], [3, 6, 8, -1]])}
    expected = np.array([[0, 4], [2, 7]])

    def compared(*values: int, shape: tuple[int, ...] = (2, 2)) -> Comparison:
        sides = ({"y": tensor_of(y)} for y in (np.array(values).reshape(shape), expected))
        return compare_outputs(*sides, FP32, inputs={}, alternatives=rows)["y"]

    assert compared(0, 4, 2, 7).note == ""
    passed = compared(0, 5, 2, 8)
    assert (passed.passed, passed.note.startswith("2 of 4 elements differ where")) == (True, True)
    for wrong in ((0, 6, 2, 7), (1, 5, 2, 7), (0, 5, 2, 9)):
        assert compared(*wrong).problem.endswith("none may")
    assert "shape" in compared(0, 5, 2, 7, shape=(1, 4)).problem


def test_an_index_of_low_precision_is_chosen_once() -> None:
    limits = {**DEFAULT_LIMITS["int8"], **AGREEMENT_LIMITS["int8"]}
    chosen = np.arange(80).reshape(2, 40)[:, ::-1] % 40

    def problem(first: int, second: int, samples: int = 2, axis: int = 1) -> str:
        ours = chosen.copy()
        ours[0, :2] = first, second
        sides = ({"y": tensor_of(np.moveaxis(y, 1, axis))} for y in (ours, chosen))
        inputs = {"x": tensor_of(np.zeros((samples, 3)))}
        return compare_outputs(*sides, limits, inputs=inputs)["y"].problem

    assert problem(39, 38) == problem(38, 39) == ""
    assert problem(38, 38) == problem(39, 39) == "repeats 1 values along axis 1, none may"
    assert problem(39, 39, axis=0) == "repeats 1 values along axis 0, none may"
    assert problem(39, 39, axis=0, samples=40) == ""  # each sample has an index of its own


def test_zeros_can_be_allowed() -> None:
    y = np.zeros((2, 3), np.float32)
    found = check_one(y, y, FP32, policy="auto", allow_zero=True)
    assert (found.passed, found.uninformative) == (True, "")
    assert found.note == "it is zero everywhere, as allowed"
    assert not check_one(y + 1e-9, y, FP32, policy="auto", allow_zero=True).passed


def test_an_output_is_informative_if_one_case_is() -> None:
    zero, one = (compare(np.full(3, v), np.full(3, v), FP32) for v in (0.0, 1.0))
    cases = [{"a": zero, "b": zero}, {"a": one, "b": zero}]
    assert uninformative_outputs(cases) == {"b": "it is zero everywhere"}
    empty = compare(np.zeros(0), np.zeros(0), FP32)
    assert uninformative_outputs([{"a": empty}]) == {"a": "it is empty"}
    accepted = safe_load(uninformative_changes(["a: b"], ("y", "a: b"))[-1])
    compare_zero = {"compare": {"policy": "auto", "allow_zero": True}}
    assert accepted == {"outputs": {"y": {}, "a: b": compare_zero}}
