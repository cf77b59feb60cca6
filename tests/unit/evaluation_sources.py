"""Inputs and data of evaluations in folders of tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from buildsys.evaluation.batch import Batch
from buildsys.evaluation.samples import open_samples
from buildsys.onnx_graphs.tensors import Array

PREPROCESS = {
    "resize": None, "interpolation": "nearest", "color": "gray", "layout": "nchw", "divide": 1.0,
    "mean": (0.0,), "std": (1.0,), "pad": None,
}  # fmt: skip


def inputs(*shape: int | str, dtype: str = "float32", **fields: Any) -> dict[str, dict[str, Any]]:
    return {"x": {"shape": ["batch", *shape], "dtype": dtype, **fields}}


IMAGES = inputs(1, 2, 2, preprocess=PREPROCESS)


def read(
    folder: Path,
    data: Mapping[str, Any],
    declared: Mapping[str, Any],
    size: int = 4,
    start: int = 0,
) -> list[Batch]:
    return list(open_samples(data, declared, folder).batches(size, start))


def values(batches: list[Batch]) -> Array:
    return np.concatenate([batch.inputs["x"] for batch in batches])


def labels(batches: list[Batch]) -> list[Any]:
    return [label for batch in batches for label in batch.labels]


def names(batches: list[Batch]) -> list[str]:
    return [name for batch in batches for name in batch.names]


def make_image(file: Path, value: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((2, 2), value, np.uint8)).save(file)
