"""Sizes at which the rows of a resized input follow from rounding."""

import math
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from sample_networks import Looked
from small_graphs import parse
from torch import nn

from buildsys.models.code_numbers import code_numbers
from buildsys.models.resized_inputs import Resize, ResizeRecorder, is_rounded_apart, rounded_apart


def onnx_rows(length: int, scale: float | None, target: int | None) -> np.ndarray:
    """Resize a ramp to the nearest rows in ONNX Runtime."""
    resized = 'Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",'
    resized += ' nearest_mode = "floor"> (x, '
    values = {"scales": np.array([1, 1, scale, 1], np.float32)}
    call = "none, scales)" if scale else "none, none, sizes)"
    if not scale:
        values = {"sizes": np.array([1, 1, target, 1], np.int64)}
    values["none"] = np.zeros(0, np.float32)
    graph = parse(f"(float[1,1,n,1] x) => (float[1,1,m,1] y) {{ y = {resized}{call} }}", values, 17)
    session = ort.InferenceSession(graph.SerializeToString())
    ramp = np.arange(length, dtype=np.float32).reshape(1, 1, length, 1)
    return np.asarray(session.run(None, {"x": ramp})[0]).reshape(-1)


@pytest.mark.parametrize(
    ("scale", "target"),
    [(1.4, None), (0.58, None), (0.7, None), (None, 30), (None, 48), (None, 56)],
)
def test_the_sizes_computed_are_those_that_differ(scale: float | None, target: int | None) -> None:
    computed, measured = set(), set()
    for length in range(4, 97):
        ramp = torch.arange(length, dtype=torch.float32).reshape(1, 1, length, 1)
        size = {"scale_factor": (scale, 1.0)} if scale else {"size": (target, 1)}
        rows = nn.functional.interpolate(ramp, **size).reshape(-1).numpy()
        if not np.array_equal(rows, onnx_rows(length, scale, target)):
            measured.add(length)
        if is_rounded_apart(Resize("", 1, 0, length, scale, target, True), length):
            computed.add(length)
    assert measured
    assert computed == measured


class Resized(nn.Module):
    """Halves its height by a stride, then resizes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = nn.functional.avg_pool2d(x, 2)
        return nn.functional.interpolate(half, scale_factor=(1.4, 1.0), mode="bilinear")


def test_sizes_follow_from_the_recorded_calls() -> None:
    recorder = ResizeRecorder()
    cases = {"min": {"height": 16, "n": 1}, "max": {"height": 400, "n": 4}}
    for case, dims in cases.items():
        recorder.start(case)
        with recorder:
            Resized()(torch.zeros(dims["n"], 1, dims["height"], 8))
    spans: Any = {
        "height": {"min": 16, "max": 400, "multiple_of": 2},
        "n": {"min": 1, "max": 4, "multiple_of": 1},
    }
    found = list(rounded_apart(recorder.resizes, spans, cases))
    assert [name for name, _ in found] == ["height"] * 2
    for _, height in found:
        length = height // 2
        assert math.floor(length * 1.4) != math.floor(np.float32(length) * np.float32(1.4))


def test_numbers_of_tables_and_branches_are_read_from_code() -> None:
    class Limits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.window = 93

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def inner(n: int) -> bool:
                return n in {777, 91}

            return x if inner(x.shape[0]) else -x

    numbers = code_numbers(nn.Sequential(nn.Linear(1234, 1), Looked(), Limits()))
    assert {48, 448, 449, 777, 91, 93} <= {*numbers}
    assert 1234 not in numbers
