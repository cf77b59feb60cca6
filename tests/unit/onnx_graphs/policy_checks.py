"""Comparisons of outputs by policy, for tests."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from hypothesis import settings

from buildsys.onnx_graphs.output_policies import compare_outputs
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import Array, tensor_of

FP32 = {"rtol": 1e-4, "cosine": 0.9999}
FP16 = {"rtol": 2e-2, "cosine": 0.999}
QUICK = settings(max_examples=60, deadline=None)
DETECTIONS = {
    "policy": "detections",
    "labels": "labels",
    "scores": "scores",
    "score_column": None,
    "label_column": None,
    "rows": (),
    "format": "xyxy",
    "iou": 0.9,
    "score": None,
    "min_score": 0.0,
}


def check(
    actual: Mapping[str, Array],
    expected: Mapping[str, Array],
    limits: Mapping[str, float] = FP32,
    policies: Mapping[str, Any] | None = None,
    batch: int = 1,
    assembled: Collection[str] = (),
) -> dict[str, Comparison]:
    inputs = {"x": tensor_of(random(batch, 3))}
    sides = [{name: tensor_of(v) for name, v in side.items()} for side in (actual, expected)]
    policies = {name: {"allow_zero": False, **fields} for name, fields in (policies or {}).items()}
    return compare_outputs(*sides, limits, policies, inputs=inputs, assembled=assembled)


def check_one(x: Array, y: Array, limits: Mapping[str, float], **policy: Any) -> Comparison:
    return check({"y": x}, {"y": y}, limits, {"y": policy})["y"]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def detections(count: int, seed: int = 0) -> dict[str, Array]:
    stream = np.random.default_rng(seed)
    corner, size = stream.uniform(0, 500, (count, 2)), stream.uniform(20, 100, (count, 2))
    return {
        "boxes": np.concatenate([corner, corner + size], axis=1).astype(np.float32),
        "scores": np.sort(stream.uniform(0.3, 1, count))[::-1].astype(np.float32),
        "labels": stream.integers(0, 5, count),
    }


def rows_of(outputs: Mapping[str, Array], order: Any) -> dict[str, Array]:
    return {name: values[order] for name, values in outputs.items()}
