"""Batches of calibration data, for builders that calibrate themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, NpzFile

_KEY = re.compile(r"(\d+)/(.+)")
Batch = Mapping[str, Array]


def read_batches(
    file: Path, inputs: Mapping[str, Sequence[int]], *, one_shape_for: str = ""
) -> list[Batch]:
    """Read calibration batches from the arrays ``INDEX/INPUT`` of an .npz file.

    ``inputs`` has the shapes of the network's inputs, -1 for a dynamic dimension; arrays of other
    inputs are left out.
    ``one_shape_for`` names a library whose batches must all have the same shape.
    Raises: StageError: there is no batch, an input is missing or not finite, or a shape is wrong.
    """
    stored: dict[int, dict[str, Array]] = {}
    try:
        for key, array in NpzFile(file).items():
            if match := _KEY.fullmatch(key):
                stored.setdefault(int(match[1]), {})[match[2]] = array
    except (OSError, ValueError) as error:
        raise StageError(
            f"{file.name} contains no calibration batches: {error}",
            "make the calibration data again: the target calibrate of the model writes it",
        ) from error
    if not stored:
        text = f"there is no batch to calibrate with in {file.name}"
        raise StageError(text, "give calibration data")
    batches: list[Batch] = []
    for number, index in enumerate(sorted(stored)):
        if problem := _problem(
            stored[index], inputs, batches[0] if batches and one_shape_for else {}
        ):
            hint = f"{one_shape_for} calibrates with batches of one shape" if one_shape_for else ""
            problem = f"batch {number} of the calibration data has {problem}"
            raise StageError(problem, hint or "correct the data of the section calibration")
        batches.append({name: stored[index][name] for name in inputs})
    return batches


def _problem(batch: Batch, inputs: Mapping[str, Sequence[int]], first: Batch) -> str:
    for name, shape in inputs.items():
        if name not in batch:
            return f"no input {name}, only {', '.join(batch)}"
        sizes = batch[name].shape
        fits = len(sizes) == len(shape) and all(
            expected in (-1, size) for expected, size in zip(shape, sizes, strict=True)
        )
        if not fits:
            expected_sizes = [size if size >= 0 else "any" for size in shape]
            return f"{name} of shape {list(sizes)}, not {expected_sizes}"
        if first and sizes != first[name].shape:
            return f"{name} of shape {list(sizes)}, and batch 0 has {list(first[name].shape)}"
        if batch[name].dtype.kind == "f" and not np.isfinite(batch[name]).all():
            return f"NaN or infinity in {name}"
    return ""
