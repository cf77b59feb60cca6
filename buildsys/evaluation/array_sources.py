"""Samples in .npz files and from Python generators."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation.batch import MIB, Batch, Inputs, Samples, label_list, plain_label, reading
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.tensors import Array

_AS_NPZ = "an .npz file", "save it with numpy.savez"
_END = object()


def npz_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
    """Open an .npz file with an array per input and one of labels, read forward in pieces."""
    title, file, label_key = data["npz"], project / data["npz"], data["labels"]
    with reading(title, *_AS_NPZ), zipfile.ZipFile(file) as archive:
        rows = {key: len(_Rows(archive, key, title)) for key in (*inputs, label_key)}
    count = rows[label_key]
    for key, number in rows.items():
        if number != count:
            problem = f"{title}: {key} has {number} rows, {label_key} has {count}"
            raise StageError(problem, "save one label per sample")

    def read(start: int, size: int) -> Iterator[Batch]:
        with reading(title, *_AS_NPZ), zipfile.ZipFile(file) as archive:
            arrays = {key: _Rows(archive, key, title) for key in (*inputs, label_key)}
            largest = max(rows.row_bytes for rows in arrays.values())
            step = max(size, MIB // max(1, largest))
            for rows in arrays.values():
                rows.skip(start)
            for begin in range(start, count, step):
                end = min(begin + step, count)
                pieces = {key: rows.read(end - begin) for key, rows in arrays.items()}
                labels = label_list(pieces[label_key])
                names = [f"{number}" for number in range(begin, end)]
                yield Batch(names, {name: pieces[name] for name in inputs}, labels)

    return Samples(inputs, count, read)


class _Rows:
    """The rows of one array in an .npz file, in order."""

    def __init__(self, archive: zipfile.ZipFile, key: str, title: str) -> None:
        if f"{key}.npy" not in archive.namelist():
            names = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
            raise StageError(f"{title} has no array {key}", f"it has {names}")
        self._stream: IO[bytes] = archive.open(f"{key}.npy")
        is_first = np.lib.format.read_magic(self._stream) == (1, 0)
        header = np.lib.format
        read = header.read_array_header_1_0 if is_first else header.read_array_header_2_0
        self._shape, fortran, self._dtype = read(self._stream)
        if self._dtype.hasobject or not self._shape or (fortran and len(self._shape) > 1):
            problem = f"{title}: {key} has no rows of numbers or strings in C order"
            raise StageError(problem, "save numpy.ascontiguousarray(array) with a row per sample")
        self.row_bytes = self._dtype.itemsize * prod(self._shape[1:])

    def __len__(self) -> int:
        return int(self._shape[0])

    def skip(self, rows: int) -> None:
        self._stream.seek(rows * self.row_bytes, os.SEEK_CUR)

    def read(self, rows: int) -> Array:
        content = bytearray(self._stream.read(rows * self.row_bytes))
        array: Array = np.ndarray((rows, *self._shape[1:]), self._dtype, content)
        return array.astype(self._dtype.newbyteorder("="), copy=False)


def python_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
    """Open a generator function ``FILE.py:FUNCTION`` of samples or batches of them."""
    reference = data["python"]
    function = load_callable(reference, project)

    def read(start: int, _size: int) -> Iterator[Batch]:
        number = 0
        with reraise_as_stage_error(f"{reference} failed", project):
            items = iter(function())
        while True:
            with reraise_as_stage_error(f"{reference} failed at sample {number}", project):
                if (item := next(items, _END)) is _END:
                    return
                batch = _yielded(item, inputs, number, reference)
            yield batch[max(0, start - number) :]
            number += len(batch)

    return Samples(inputs, None, read)


def _yielded(item: Any, inputs: Inputs, number: int, reference: str) -> Batch:
    """Convert what a generator yields; copies, as it may fill the same array again."""
    where = f"{reference} yields as sample {number}"
    hint = "yield ({input: array}, label), or a batch of arrays and a list of labels"
    if not isinstance(item, tuple) or len(item) != 2:
        raise StageError(f"{where} a value of type {type(item).__name__}", hint)
    values, label = item
    if not isinstance(values, Mapping):
        values = dict.fromkeys(inputs, values) if len(inputs) == 1 else {}
    arrays = {name: np.array(values[name]) for name in inputs if name in values}
    if not arrays:
        raise StageError(f"{where} no array for the inputs {', '.join(inputs)}", hint)
    name, array = next(iter(arrays.items()))
    if array.ndim == len(inputs[name]["shape"]) - 1:
        single = {name: array[np.newaxis] for name, array in arrays.items()}
        return Batch([f"{number}"], single, [plain_label(label)])
    if array.ndim == 0 or isinstance(label, (str, Mapping)) or not hasattr(label, "__len__"):
        raise StageError(f"{where} an array of shape {array.shape} for {name}", hint)
    labels = label_list(label)
    if len(labels) != len(array):
        raise StageError(f"{where} {len(array)} rows of {name} with {len(labels)} labels", hint)
    return Batch([f"{number + row}" for row in range(len(array))], arrays, labels)
