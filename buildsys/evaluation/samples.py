"""Samples of .npz files, Python generators, images, tables and Hugging Face datasets."""

import csv
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import has_magic
from math import prod
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.evaluation.batch import (
    MIB,
    Batch,
    Inputs,
    Label,
    Samples,
    label_list,
    plain_label,
    reading,
)
from buildsys.models.images import EncodedImage, read_images
from buildsys.models.user_code import import_library, load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.tensors import NATIVE_DTYPES, Array
from buildsys.system.files import IMAGE_SUFFIXES, image_files, source_files

_AS_NPZ = "an .npz file", "save it with numpy.savez"
_AS_TABLE = "a table", "save it as .parquet, or .arrow of Arrow IPC"
_END = object()


def open_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
    """Open the samples of ``evaluate.data``, which are read in batches.

    ``inputs`` are as in the manifest; dimensions by name, but for images, may vary.
    Raises: StageError: the data does not exist, or labels do not match.
    """
    for name, declared in inputs.items():
        if not declared["shape"]:
            problem = f"the input {name} is a scalar, which has no axis for samples"
            raise StageError(problem, "give it a batch axis")
    kind = next(kind for kind in _SOURCES if kind in data)
    return _SOURCES[kind](data, inputs, project)


def _npz_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
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
            step = max(size, MIB // max(1, *(rows.row_bytes for rows in arrays.values())))
            for rows in arrays.values():
                rows.stream.seek(start * rows.row_bytes, os.SEEK_CUR)
            for begin in range(start, count, step):
                numbers = range(begin, min(begin + step, count))
                piece = {key: rows.read(len(numbers)) for key, rows in arrays.items()}
                labels = label_list(piece[label_key])
                yield Batch([*map(str, numbers)], {name: piece[name] for name in inputs}, labels)

    return Samples(inputs, count, read)


class _Rows:
    """The rows of one array in an .npz file, in order."""

    def __init__(self, archive: zipfile.ZipFile, key: str, title: str) -> None:
        if f"{key}.npy" not in archive.namelist():
            names = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
            raise StageError(f"{title} has no array {key}", f"it has {names}")
        self.stream, header = archive.open(f"{key}.npy"), np.lib.format
        is_first = header.read_magic(self.stream) == (1, 0)
        read = header.read_array_header_1_0 if is_first else header.read_array_header_2_0
        self._shape, fortran, self._dtype = read(self.stream)
        if self._dtype.hasobject or not self._shape or (fortran and len(self._shape) > 1):
            problem = f"{title}: {key} has no rows of numbers or strings in C order"
            raise StageError(problem, "save numpy.ascontiguousarray(array) with a row per sample")
        self.row_bytes = self._dtype.itemsize * prod(self._shape[1:])

    def __len__(self) -> int:
        return int(self._shape[0])

    def read(self, rows: int) -> Array:
        content = bytearray(self.stream.read(rows * self.row_bytes))
        if len(content) < rows * self.row_bytes:
            raise EOFError("it ends too early")
        array: Array = np.ndarray((rows, *self._shape[1:]), self._dtype, content)
        return array.astype(self._dtype.newbyteorder("="), copy=False)


def _python_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
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
    if array.ndim == len(inputs[name]["shape"]) - 1:  # a sample, else a batch
        arrays = {name: array[np.newaxis] for name, array in arrays.items()}
        label = [label]
    elif array.ndim == 0 or isinstance(label, (str, Mapping)) or not hasattr(label, "__len__"):
        raise StageError(f"{where} an array of shape {array.shape} for {name}", hint)
    labels = label_list(label)  # checked against the rows of arrays later
    return Batch([f"{number + row}" for row in range(len(labels))], arrays, labels)


def _image_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
    """Open the images of a folder or pattern, with a CSV file of labels."""
    pattern, folder = data["images"], project / data["images"]
    source = pattern if has_magic(pattern) else f"{pattern}/"
    paths = [p for p in source_files(str(project), source) if p.lower().endswith(IMAGE_SUFFIXES)]
    files = [os.path.relpath(path, project) for path in paths]
    if not folder.is_dir():
        fixed = re.split(r"[*?\[]", pattern)[0]
        folder = project / fixed.rpartition("/")[0]
    if not files:
        hint = f"add images ({' '.join(IMAGE_SUFFIXES)}), or correct evaluate.data"
        raise StageError(f"there are no images in {pattern}", hint)
    return _files(files, _read_labels(data["labels"], files, folder, project), inputs, project)


def _folder_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
    """Open a folder with a folder per class: that of its name, else in order of names."""
    folder = project / data["folder"]
    classes = sorted(path for path in folder.glob("*") if path.is_dir())
    if not classes:
        raise StageError(f"{data['folder']} has no folders of classes", "correct evaluate.data")
    names, files, labels = list(data.get("classes") or ()), [], list[Label]()
    has_names = {path.name for path in classes} <= {*names}
    if names and not has_names and len(names) != len(classes):
        problem = f"{data['folder']} has {len(classes)} folders for {len(names)} classes"
        raise StageError(problem, "name the folders as in outputs.NAME.labels")
    for number, path in enumerate(classes):
        images = [os.path.relpath(image, project) for image in image_files(str(path))]
        if not images:
            hint = "remove it, or add images; every folder is a class"
            raise StageError(f"{os.path.relpath(path, project)} has no images", hint)
        files += images
        labels += [path.name if has_names else number] * len(images)
    return _files(files, labels, inputs, project)


def _read_labels(title: str, files: Sequence[str], folder: Path, project: Path) -> list[Label]:
    """Read the label of each file from a CSV file with the columns file and label.

    Files are named from the project, the folder of images, or by name alone.
    Raises: StageError: it cannot be read, or does not match the images.
    """
    by_name: dict[str, str] = {}
    for line, name, label in _csv_rows(title, project):
        if by_name.setdefault(str(PurePath(name)), label) != label:
            problem = f"{title}:{line}: {name} has a second label, {label}"
            raise StageError(problem, "give one label per file")
    used: dict[str, str] = {}
    missing = []
    for file in files:
        path = project / file
        texts = file, os.path.relpath(path, folder), path.name, str(path)
        match = next((text for text in texts if text in by_name), None)
        if match is None:
            missing.append(file)
        elif used.setdefault(match, file) != file:
            problem = f"{title} names {match}, which is {used[match]} or {file}"
            raise StageError(problem, "write the path from the folder of images")
    if missing:
        problem = f"{title} has no label for {len(missing)} of {len(files)} images: {missing[0]}"
        raise StageError(problem, "add lines FILE,LABEL, or remove the images")
    if extra := by_name.keys() - used:
        problem = f"{title} has labels for {len(extra)} files that are not images here"
        hint = "remove the lines, or correct evaluate.data.images"
        raise StageError(f"{problem}: {min(extra)}", hint)
    labels = [by_name[match] for match in used]
    for number in (int, float):
        with suppress(ValueError):  # others are names
            return [number(label) for label in labels]
    return [*labels]


def _csv_rows(title: str, project: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, file and label; a header may name the columns."""
    with (
        reading(title, "a CSV file", "correct evaluate.data.labels"),
        (project / title).open(encoding="utf-8-sig", newline="") as stream,
    ):
        rows = [(number, row) for number, row in enumerate(csv.reader(stream), 1) if any(row)]
    file, label = 0, 1
    if rows and not rows[0][1][0].lower().endswith(IMAGE_SUFFIXES):
        header = [cell.strip().lower() for cell in rows.pop(0)[1]]
        if {"file", "label"} <= {*header}:
            file, label = header.index("file"), header.index("label")
    for number, row in rows:
        if len(row) <= max(file, label) or not row[label].strip():
            raise StageError(f"{title}:{number}: there is no label", "write FILE,LABEL")
        yield number, row[file].strip(), row[label].strip()


def _files(files: list[str], labels: list[Label], inputs: Inputs, project: Path) -> Samples:
    def read(start: int, size: int) -> Iterator[Batch]:
        for begin in range(start, len(files), size):
            names = files[begin : begin + size]
            images = [_image(name, project) for name in names]
            yield Batch(names, _prepared(images, inputs), labels[begin:][:size], images)

    return Samples(inputs, len(files), read)


def _image(name: str, project: Path) -> EncodedImage:
    with reading(name, "an image", "let files be until the build ends"):
        return EncodedImage(name, (project / name).read_bytes())


def _prepared(images: Sequence[EncodedImage], inputs: Inputs) -> dict[str, Array]:
    """Decode and preprocess images for the input that has ``preprocess``.

    Raises: StageError: there is no such input, or a file cannot be read.
    """
    names = [name for name, declared in inputs.items() if declared.get("preprocess")]
    if len(names) != 1:
        problem = f"images can fill one input, and {len(names)} of {', '.join(inputs)} take images"
        raise StageError(problem, "declare inputs.NAME.preprocess of one")
    declared = inputs[names[0]]
    shape = (len(images), *declared["shape"][1:])
    if any(isinstance(dim, str) for dim in shape):
        raise StageError(f"the input {names[0]} has no fixed size", "fix its height and width")
    tensor = read_images(images, declared["preprocess"], names[0], shape, declared["dtype"])
    return {names[0]: tensor.values()}


def _table_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
    """Open files with a column per input and one of labels, read in record batches."""
    import_library("pyarrow", project)
    kind = next(kind for kind in ("parquet", "arrow", "dataset") if kind in data)
    title, label = data[kind], data.get("label") or "label"
    paths = [path for name in source_files(str(project), title) if (path := Path(name)).is_file()]
    files = _dataset_files(title, project) if kind == "dataset" else paths
    if not files:
        raise StageError(f"there are no files {title}", "correct evaluate.data")
    count = 0
    for file in files:
        with reading(file.name, *_AS_TABLE), _opened(file) as (names, batches):
            # a dataset of images names its column so
            own = [name if name in names or len(inputs) > 1 else "image" for name in inputs]
            for name, column in zip((*inputs, label), (*own, label), strict=True):
                if column not in names:
                    problem = f"{file.name} has no column {name}"
                    raise StageError(problem, f"it has {', '.join(names)}")
            count += sum(part.num_rows for part in batches([label], 2**16))
    columns = dict(zip(inputs, own, strict=True))

    def parts(size: int) -> Iterator[Any]:
        for file in files:
            with reading(file.name, *_AS_TABLE), _opened(file) as (_, batches):
                for part in batches([*own, label], size):
                    part.validate(full=True)  # else damaged offsets abort the process
                    yield part

    def read(start: int, size: int) -> Iterator[Batch]:
        number = 0
        for part in parts(size):
            for begin in range(max(0, start - number), part.num_rows, size):
                yield _batch(part.slice(begin, size), columns, label, inputs, number + begin)
            number += part.num_rows

    return Samples(inputs, count, read)


def _batch(rows: Any, columns: Mapping[str, str], label: str, inputs: Inputs, number: int) -> Batch:
    """Convert rows of a record batch."""
    arrays: dict[str, Array] = {}
    encoded: list[EncodedImage] = []
    for name, declared in inputs.items():
        column = rows.column(columns[name])
        if images := _images(column, number):
            arrays |= _prepared(images, {name: declared})
            encoded = images
        else:
            arrays[name] = _array(column, declared, f"column {columns[name]} from row {number}")
    labels = [plain_label(value) for value in rows.column(label).to_pylist()]
    if None in labels:
        problem = f"row {number + labels.index(None)} has no {label}"
        raise StageError(problem, "remove such rows")
    return Batch([f"{number + row}" for row in range(rows.num_rows)], arrays, labels, encoded)


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


@contextmanager
def _opened(file: Path) -> Iterator[tuple[list[str], Callable[[list[str], int], Iterable[Any]]]]:
    """Open Parquet, or Arrow's IPC as a stream; files of random access contain one.

    Yields the names of columns, and a function of columns and a preferred size of batches.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    if file.suffix == ".parquet":
        # without both, a whole row group is in memory
        with ParquetFile(file, pre_buffer=False, buffer_size=MIB) as parquet:
            names = parquet.schema_arrow.names
            yield names, lambda names, size: parquet.iter_batches(size, columns=names)
    else:
        with pa.memory_map(str(file)) as source:
            source.seek(8 if source.read(8).startswith(b"ARROW1") else 0)
            stream = pa.ipc.open_stream(source)
            yield stream.schema.names, lambda _names, _size: stream


_SOURCES = {
    "images": _image_samples, "folder": _folder_samples, "npz": _npz_samples,
    "python": _python_samples, "parquet": _table_samples, "arrow": _table_samples,
    "dataset": _table_samples,
}  # fmt: skip
