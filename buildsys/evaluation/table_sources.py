"""Samples in columns of Parquet and Arrow files, or of a saved Hugging Face dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation.batch import MIB, Batch, Inputs, Samples, plain_label, reading
from buildsys.evaluation.image_sources import prepared
from buildsys.models.images import EncodedImage
from buildsys.models.user_code import import_library
from buildsys.onnx_graphs.tensors import NATIVE_DTYPES, Array

_AS_TABLE = "a table", "save it as .parquet, or .arrow of Arrow IPC"
_IMAGE_COLUMN = "image"  # as datasets of images name it


def table_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
    """Open files with a column per input and one of labels, read in record batches."""
    import_library("pyarrow", project)
    kind = next(kind for kind in ("parquet", "arrow", "dataset") if kind in data)
    title, label = data[kind], data.get("label") or "label"
    is_saved = kind == "dataset"
    files = _dataset_files(title, project) if is_saved else sorted(project.glob(title))
    if not files:
        raise StageError(f"there are no files {title}", "correct evaluate.data")
    count, columns = 0, {}
    for file in files:
        with reading(file.name, *_AS_TABLE):
            rows, names = _describe(file)
        count += rows
        for name in (*inputs, label):
            columns[name] = name
            if name not in names and len(inputs) == 1 and name != label:
                columns[name] = _IMAGE_COLUMN
            if columns[name] not in names:
                problem = f"{file.name} has no column {name}"
                raise StageError(problem, f"it has {', '.join(names)}")

    def read(start: int, size: int) -> Iterator[Batch]:
        number = 0
        for file in files:
            with reading(file.name, *_AS_TABLE):
                for part in _record_batches(file, list({*columns.values()}), size):
                    for begin in range(max(0, start - number), part.num_rows, size):
                        rows = part.slice(begin, size)
                        yield _batch(rows, columns, label, inputs, number + begin)
                    number += part.num_rows

    return Samples(inputs, count, read)


def _batch(rows: Any, columns: Mapping[str, str], label: str, inputs: Inputs, number: int) -> Batch:
    """Convert rows of a record batch."""
    arrays: dict[str, Array] = {}
    for name, declared in inputs.items():
        column = rows.column(columns[name])
        if images := _images(column, number):
            arrays |= prepared(images, {name: declared})
        else:
            arrays[name] = _array(column, declared, f"column {columns[name]} from row {number}")
    labels = [plain_label(value) for value in rows.column(label).to_pylist()]
    if None in labels:
        problem = f"row {number + labels.index(None)} has no {label}"
        raise StageError(problem, "remove such rows")
    return Batch([f"{number + row}" for row in range(rows.num_rows)], arrays, labels)


def _images(column: Any, number: int) -> list[EncodedImage]:
    """Take encoded images from a column of bytes, or of Hugging Face's images."""
    import pyarrow as pa

    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = column.field("bytes")
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        return []
    contents = enumerate(column.to_pylist(), number)
    return [EncodedImage(f"the image in row {row}", content or b"") for row, content in contents]


def _array(column: Any, declared: Mapping[str, Any], what: str) -> Array:
    """Convert a column of numbers, strings or nested lists of one size."""
    import pyarrow as pa
    import pyarrow.compute as pc

    shape = [len(column)]
    column = getattr(column, "storage", column)
    while pa.types.is_nested(column.type) and not pa.types.is_struct(column.type):
        sizes = pc.list_value_length(column).unique().to_pylist()
        if len(sizes) != 1 or sizes[0] is None:
            problem = f"{what} has lists of different lengths"
            raise StageError(problem, "pad them, or use evaluate.data.python")
        shape.append(sizes[0])
        column = column.flatten()
    if column.null_count:
        raise StageError(f"{what} has empty values", "remove such rows")
    values = column.to_numpy(zero_copy_only=False)
    sizes = list(declared["shape"])[1:]
    if all(isinstance(dim, int) for dim in sizes) and np.prod(shape[1:]) == np.prod(sizes):
        shape[1:] = sizes
    dtype = declared["dtype"] if declared["dtype"] in NATIVE_DTYPES else "float32"
    if values.dtype.kind in "fiub" and np.can_cast(values.dtype, dtype, "same_kind"):
        values = values.astype(dtype)
    return np.reshape(values, shape)


def _dataset_files(title: str, project: Path) -> list[Path]:
    """List the files of a dataset that ``save_to_disk`` wrote."""
    folder = project / title
    with reading(title, "a dataset of save_to_disk", "name its folder with state.json"):
        if (folder / "dataset_dict.json").is_file():
            splits = json.loads((folder / "dataset_dict.json").read_bytes())["splits"]
            raise StageError(f"{title} has several splits", f"name one: {title}/{splits[0]}")
        state = json.loads((folder / "state.json").read_bytes())
        return [folder / file["filename"] for file in state["_data_files"]]


def _describe(file: Path) -> tuple[int, list[str]]:
    """Count the rows and list the columns."""
    if file.suffix == ".parquet":
        from pyarrow.parquet import ParquetFile

        with ParquetFile(file) as parquet:
            return parquet.metadata.num_rows, parquet.schema_arrow.names
    with _arrow(file) as reader:
        return sum(batch.num_rows for batch in reader), reader.schema.names


def _record_batches(file: Path, columns: list[str], size: int) -> Iterator[Any]:
    """Read record batches; those of Arrow files have their own size."""
    if file.suffix == ".parquet":
        from pyarrow.parquet import ParquetFile

        # without both, a whole row group is in memory
        with ParquetFile(file, pre_buffer=False, buffer_size=MIB) as parquet:
            yield from parquet.iter_batches(size, columns=columns)
    else:
        with _arrow(file) as reader:
            yield from reader


@contextmanager
def _arrow(file: Path) -> Iterator[Any]:
    """Map a file of Arrow's IPC as a stream; files of random access contain one."""
    import pyarrow as pa

    with pa.memory_map(str(file)) as source:
        begins = source.read(8)
        source.seek(8 if begins.startswith(b"ARROW1") else 0)
        yield pa.ipc.open_stream(source)
