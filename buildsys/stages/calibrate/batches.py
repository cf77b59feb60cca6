"""Calibration batches: checked, and equal on every machine."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.backends.interface import read_batches
from buildsys.errors import StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import (
    golden_input,
    read_array,
    require_dtype,
    values_from_callable,
)
from buildsys.models.images import find_images, read_images
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of, write_array
from buildsys.workers.job import Job

Batch = dict[str, Tensor]


def draw_batches(job: Job) -> Iterator[Batch]:
    """Yield the calibration batches of a job one by one.

    Raises: StageError: the data does not match an input, is too small, or is not finite.
    """
    sources = {name: _values(job, name) for name in job.options["inputs"]}
    for index in range(job.options["calibration"]["batches"]):
        batch = {name: next(values) for name, values in sources.items()}
        for name, tensor in batch.items():
            if count := tensor.non_finite():
                raise StageError(
                    f"the calibration data of the input {name}, batch {index}, has {count} of"
                    f" {tensor.array.size} values NaN or infinite",
                    "remove such values from the calibration data",
                )
        yield batch


def save_batches(path: Path, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Write batches as arrays ``INDEX/INPUT`` of an .npz file, and yield them.

    Equal batches give equal bytes.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for index, batch in enumerate(batches):
            for name, tensor in batch.items():
                write_array(archive, f"{index}/{name}", tensor.array)
            yield batch


def load_batches(path: Path, dtypes: Mapping[str, str]) -> Iterator[Batch]:
    """Yield the batches of a file by ``save_batches``; ``dtypes`` are the inputs'."""
    for batch in read_batches(path, dtypes):
        yield {name: Tensor(array, dtypes[name]) for name, array in batch.items()}


def _values(job: Job, name: str) -> Iterator[Tensor]:
    """Yield the values of one input for every batch."""
    section, port, project = job.options["calibration"], job.options["inputs"][name], job.project
    data, dtype, seed = section["data"][name], port["dtype"], section["seed"]
    shape, kinds = concrete_shape(port["shape"], job.options["dims"]), data or {}
    size, where = (shape[0] if shape else 1), f"input {name}, calibration batch"
    samples = section["batches"] * size
    files = find_images(data, name, samples, project) if "images" in kinds else []
    array = _read_samples(project, name, data, shape, dtype, samples) if "npz" in kinds else None
    for index in range(section["batches"]):
        part = slice(index * size, (index + 1) * size)
        if files:
            yield read_images(files[part], data, name, shape, dtype)
        elif array is not None:
            yield tensor_of(array[part] if shape else array[index], dtype)
        elif "python" in kinds:
            call = data["python"]
            yield values_from_callable(call, shape, dtype, index, seed, project, f"{where} {index}")
        else:
            case = f"calibration/{index}"
            yield golden_input(name, shape, dtype, data, case=case, seed=seed, project=project)


def _read_samples(
    project: Path,
    name: str,
    data: Mapping[str, Any],
    shape: tuple[int, ...],
    dtype: str,
    samples: int,
) -> Array:
    """Read one array with all batches along its first dimension."""
    array, what = read_array(project / data["npz"], data["npz"], data["key"] or name)
    require_dtype(array, dtype, what, f"input {name}")
    if array.ndim != max(1, len(shape)) or array.shape[1:] != shape[1:] or len(array) < samples:
        raise StageError(
            f"{what} has the shape {array.shape}; batches of the input {name} have {shape} and"
            f" need {samples} samples",
            "all dimensions but the first must match; add samples, or reduce batches or batch_size",
        )
    return array
