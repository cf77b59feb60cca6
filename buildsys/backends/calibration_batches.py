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


def read_finite_batches(file: Path, inputs: Mapping[str, Sequence[int]]) -> list[dict[str, Array]]:
    """Read the batches of ``read_batches`` with the arrays of ``inputs`` only, in their order.

    Raises: StageError: as ``read_batches``, or an array has NaN or infinity.
    """
    batches = read_batches(file, inputs)
    for number, batch in enumerate(batches):
        for name, array in batch.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                text = f"batch {number} of the calibration data has NaN or infinity in {name}"
                raise StageError(text, "correct the data of the section calibration")
    return [{name: batch[name] for name in inputs} for batch in batches]


def read_batches(
    file: Path, inputs: Mapping[str, Sequence[int]], *, one_shape_for: str = ""
) -> list[Batch]:
    """Read the batches of an .npz file of arrays ``INDEX/INPUT``.

    ``inputs`` has the shapes of the network's inputs, -1 for a dynamic dimension.
    Raises: StageError: there is no batch, an input is missing, or a shape does not fit the network,
    or the others with ``one_shape_for`` a library that needs that.
    """
    batches: dict[int, dict[str, Array]] = {}
    try:
        for key, array in NpzFile(file).items():
            if match := _KEY.fullmatch(key):
                batches.setdefault(int(match[1]), {})[match[2]] = array
    except (OSError, ValueError) as error:
        raise StageError(
            f"{file.name} contains no calibration batches: {error}",
            "make the calibration data again: the target calibrate of the model writes it",
        ) from error
    if not batches:
        text = f"there is no batch to calibrate with in {file.name}"
        raise StageError(text, "give calibration data")
    ordered: list[Batch] = [batches[index] for index in sorted(batches)]
    for number, batch in enumerate(ordered):
        for name, shape in inputs.items():
            what = f"batch {number} of the calibration data has"
            if name not in batch:
                raise StageError(
                    f"{what} no input {name}, only {', '.join(batch)}",
                    "give the engine's inputs in the calibration data",
                )
            sizes = batch[name].shape
            if len(sizes) != len(shape) or any(
                expected not in (-1, size) for expected, size in zip(shape, sizes, strict=True)
            ):
                expected_sizes = [size if size >= 0 else "any" for size in shape]
                raise StageError(
                    f"{what} {name} of shape {list(sizes)}, not {expected_sizes}",
                    "declare the shapes of the calibration data in dims",
                )
            first = ordered[0][name].shape
            if one_shape_for and sizes != first:
                raise StageError(
                    f"{what} {name} of shape {list(sizes)}, and batch 0 has {list(first)}",
                    f"{one_shape_for} calibrates with batches of one shape",
                )
    return ordered
