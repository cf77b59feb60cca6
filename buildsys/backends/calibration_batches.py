"""Batches of calibration data, as the calibrate stage writes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, NpzFile

Batch = Mapping[str, Array]


def read_batches(file: Path, inputs: Collection[str]) -> Iterator[Batch]:
    """Read the batches of an .npz file with the arrays ``INDEX/INPUT``.

    Raises: StageError: the file is damaged, or lacks an input.
    """
    try:
        arrays = NpzFile(file)
        for index in range(len({key.partition("/")[0] for key in arrays})):
            yield {name: arrays[f"{index}/{name}"] for name in inputs}
    except (OSError, ValueError, KeyError) as error:
        raise StageError(
            f"{file.name} contains no calibration batches: {error}",
            "make the calibration data again: the target calibrate of the model writes it",
        ) from error
