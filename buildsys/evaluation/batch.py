"""Samples in batches: names, inputs and labels."""

import csv
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from tokenize import TokenError
from typing import Any

import numpy as np
from blake3 import blake3

from buildsys.errors import StageError
from buildsys.models.golden_inputs import require_dtype
from buildsys.models.images import EncodedImage
from buildsys.models.user_code import first_line
from buildsys.onnx_graphs.tensors import Array

Inputs = Mapping[str, Mapping[str, Any]]  # name -> shape (batch axis first), dtype, preprocess
Label = Any  # int, float, str, an array, or a dict of arrays
MIB = 2**20
CONTENT_DIGITS = 32  # of inputs and of an image, at the start of a sample's digest
_DAMAGED = (  # what libraries raise for files, unlike mistakes in this package
    OSError, EOFError, KeyError, ValueError, RuntimeError,
    TokenError, csv.Error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Batch:
    """Consecutive samples."""

    names: list[str]  # of a file, row or number, for people
    inputs: dict[str, Array]  # with the batch axis; types unknown to numpy as float32
    labels: list[Label]
    images: list[EncodedImage] = field(default_factory=list)  # their files; or empty

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: slice) -> "Batch":
        """Select samples without copying."""
        inputs = {name: array[rows] for name, array in self.inputs.items()}
        return Batch(self.names[rows], inputs, self.labels[rows], self.images[rows])

    def take(self, rows: Sequence[int]) -> "Batch":
        """Copy some samples."""
        return _join([self[:0], *(self[row : row + 1] for row in rows)])


@dataclass(frozen=True)
class Samples:
    """The samples of a data source; each reading starts again."""

    inputs: Inputs
    count: int | None  # None: known at the end
    read: Callable[[int, int], Iterable[Batch]]  # of start and a preferred size

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Read batches of ``size`` samples, the last one and those of another shape smaller.

        Raises: StageError: the data does not fit the inputs, cannot be read, or is empty.
        """
        parts = (checked(part, self.inputs) for part in self.read(start, size) if len(part))
        empty = start == 0
        for batch in regroup(parts, size):
            empty = False
            yield batch
        if empty:
            raise StageError("the data has no samples", "correct evaluate.data")


@contextmanager
def reading(title: str, kind: str, hint: str) -> Iterator[None]:
    """Turn what libraries raise for missing and damaged files into a sentence."""
    try:
        yield
    except _DAMAGED as error:
        raise StageError(f"{title} cannot be read as {kind}: {first_line(error)}", hint) from error


def checked(batch: Batch, inputs: Inputs) -> Batch:
    """Require arrays that fit the inputs; leave out others."""
    arrays = {}
    for name, declared in inputs.items():
        what, shape = f"sample {batch.names[0]}", list(declared["shape"])[1:]
        if name not in batch.inputs:
            listed = ", ".join(batch.inputs) or "none"
            raise StageError(f"{what} has no array for the input {name}", f"it has {listed}")
        array = arrays[name] = batch.inputs[name]
        sizes = list(array.shape[1:])
        pairs = zip(shape, sizes, strict=False)
        fits = (isinstance(dim, str) or dim == size for dim, size in pairs)
        if len(sizes) != len(shape) or not all(fits):
            problem = f"{what} has the shape {sizes} for the input {name}, which needs {shape}"
            raise StageError(problem, "resize or reshape the data")
        require_dtype(array, declared["dtype"], what, f"the input {name}")
        if len(array) != len(batch.labels):
            problem = f"from {what}, the input {name} has {len(array)} rows"
            raise StageError(f"{problem} and {len(batch.labels)} labels", "give one label per row")
    return replace(batch, inputs=arrays)


def regroup(parts: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Cut and join batches to ``size`` samples of one shape."""
    waiting: list[Batch] = []
    count = 0
    for part in parts:
        if waiting and _shapes(waiting[0]) != _shapes(part):
            yield _join(waiting)
            waiting, count = [], 0
        waiting.append(part)
        count += len(part)
        if count >= size:
            whole, full = _join(waiting), count // size * size
            yield from (whole[begin : begin + size] for begin in range(0, full, size))
            waiting, count = ([whole[full:]] if count > full else []), count - full
    if waiting:
        yield _join(waiting)


def content_digest(content: bytes) -> str:
    """Digest inputs or an image file, to find them in other data."""
    return blake3(content).hexdigest(CONTENT_DIGITS // 2)


def input_digests(batch: Batch) -> list[str]:
    """Digest the inputs of each sample."""
    columns = [batch.inputs[name] for name in sorted(batch.inputs)]
    return [content_digest(b"".join(map(_content, row))) for row in zip(*columns, strict=True)]


def digests(batch: Batch) -> list[str]:
    """Digest inputs, image file, name and label of each sample, whatever the size of batches.

    A digest begins with those of inputs and file.
    """
    images = [content_digest(image.content) for image in batch.images] or [""] * len(batch)
    rows = zip(input_digests(batch), images, batch.names, batch.labels, strict=True)
    return [
        inputs + image + blake3(f"{[name]}".encode() + _content(label)).hexdigest(8)
        for inputs, image, name, label in rows
    ]


def rows_of_half(digests: Sequence[str], half: str) -> list[int]:
    """List the samples in a half: ``search`` or ``rest``; equal inputs are in the same."""
    place = ("search", "rest").index(half)
    return [row for row, digest in enumerate(digests) if int(digest[0], 16) % 2 == place]


def label_list(labels: Any) -> list[Label]:
    """Separate an array or list of labels into plain values, arrays and dicts."""
    if isinstance(labels, np.ndarray):
        return labels.tolist() if labels.ndim == 1 else list(labels)
    return [plain_label(label) for label in labels]


def plain_label(label: Any) -> Label:
    """Convert numbers of numpy and tensors to plain ones, sequences to arrays."""
    if isinstance(label, Mapping):
        return {name: np.asarray(value) for name, value in label.items()}
    if isinstance(label, (str, int, float)):
        return label
    array = np.array(label)
    return array.item() if array.ndim == 0 else array


def _content(value: Label) -> bytes:
    if isinstance(value, Mapping):
        return b"".join(name.encode() + _content(value[name]) for name in sorted(value))
    array = np.asarray(value)
    if array.dtype.kind in "OUST":  # a width or addresses, which are not of the value
        return f"{array.tolist()}".encode(errors="surrogatepass")
    return f"{array.dtype.str}{array.shape}".encode() + array.tobytes()


def _shapes(batch: Batch) -> list[tuple[int, ...]]:
    return [array.shape[1:] for array in batch.inputs.values()]


def _join(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return Batch(
        [name for part in parts for name in part.names],
        {name: np.concatenate([part.inputs[name] for part in parts]) for name in parts[0].inputs},
        [label for part in parts for label in part.labels],
        [image for part in parts for image in part.images],
    )
