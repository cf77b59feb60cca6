"""Calibration batches: checked, and equal on every machine."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.backends.calibration_batches import read_batches
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

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class BatchPlan:
    """Inputs, their shapes in one batch, their data, and the batch count."""

    inputs: Mapping[str, Mapping[str, Any]]  # name -> shape (with names of dims), dtype
    dims: Mapping[str, int]
    data: Mapping[str, Mapping[str, Any] | None]
    batches: int
    seed: int
    project: Path

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input in every batch."""
        return concrete_shape(self.inputs[name]["shape"], self.dims)

    def samples(self, name: str) -> int:
        """Return the total size of the first dimension over all batches."""
        return self.batches * (self.shape(name)[0] if self.shape(name) else 1)


def draw_batches(plan: BatchPlan) -> Iterator[Batch]:
    """Yield the batches one by one.

    Raises: StageError: the data does not match an input, is too small, or is not finite.
    """
    sources = {name: _values(plan, name) for name in plan.inputs}
    for index in range(plan.batches):
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


def _values(plan: BatchPlan, name: str) -> Iterator[Tensor]:
    """Yield the values of one input for every batch."""
    data, shape, dtype = plan.data[name] or {}, plan.shape(name), plan.inputs[name]["dtype"]
    size, seed, project = shape[0] if shape else 1, plan.seed, plan.project
    files = find_images(data, name, plan.samples(name), project) if "images" in data else []
    array = _read_samples(plan, name, data) if "npz" in data else None
    for index in range(plan.batches):
        part = slice(index * size, (index + 1) * size)
        if files:
            yield read_images(files[part], data, name, shape, dtype)
        elif array is not None:
            yield tensor_of(array[part] if shape else array[index], dtype)
        elif "python" in data:
            where = f"input {name}, calibration batch {index}"
            yield values_from_callable(data["python"], shape, dtype, index, seed, project, where)
        else:
            case = f"calibration/{index}"
            yield golden_input(
                name, shape, dtype, plan.data[name], case=case, seed=seed, project=project
            )


def _read_samples(plan: BatchPlan, name: str, data: Mapping[str, Any]) -> Array:
    """Read one array with all batches along its first dimension."""
    array, what = read_array(plan.project / data["npz"], data["npz"], data["key"] or name)
    shape, needed = plan.shape(name), plan.samples(name)
    require_dtype(array, plan.inputs[name]["dtype"], what, f"input {name}")
    if array.ndim != max(1, len(shape)) or array.shape[1:] != shape[1:] or len(array) < needed:
        raise StageError(
            f"{what} has the shape {array.shape}; {plan.batches} batches of the input {name} have"
            f" {shape} and need {needed} samples",
            "all dimensions but the first must match; add samples, or reduce batches or batch_size",
        )
    return array
