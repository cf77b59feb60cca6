"""The inputs of an engine from images and arrays in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import require_dtype
from buildsys.models.images import Size, describe_images, read_images, size_axes, size_of
from buildsys.onnx_graphs.tensors import (
    Array,
    NpzFile,
    Tensor,
    load_tensors,
    read_npy,
    save_tensors,
    tensor_of,
)
from buildsys.system.suggestions import nearest
from buildsys.workers.job import Job, StageResult

ARRAY_SUFFIXES = (".npy", ".npz")
_TENSORS = "__dtypes__"  # an array of our own files, such as golden cases
_GOLDEN_INPUT = "in."


class Given(NamedTuple):
    """A file for an input."""

    name: str  # "" for all inputs of an .npz file
    path: Path
    shown: str  # as typed


class Inputs:
    """Tensors read so far, with the sizes of their dynamic dimensions."""

    def __init__(self, declared: Mapping[str, Mapping[str, Any]], dims: Mapping[str, Any]) -> None:
        self._declared = declared  # name -> shape, dtype, preprocess
        self._spans = dims  # name -> min, max, multiple_of
        self._sizes: dict[str, tuple[int, str]] = {}  # dimension -> size, the file that has it
        self.tensors: dict[str, Tensor] = {}
        self.origins: dict[str, list[str]] = {}  # files
        self.steps: dict[str, str] = {}  # how images are prepared

    def add_array(self, name: str, tensor: Tensor, what: str, origin: str) -> None:
        """Take an array. Raises: StageError: it does not fit the input, or has NaN."""
        declared = self._declared[name]
        declared_shape = self._format_shape(name)
        if tensor.dtype != declared["dtype"]:
            require_dtype(tensor.array, declared["dtype"], what, f"the input {name}")
            tensor = tensor_of(tensor.array, declared["dtype"])
        shape = tensor.shape
        sizes = list(zip(declared["shape"], shape, strict=False))
        if len(shape) != len(declared["shape"]) or any(
            isinstance(size, int) and size != actual for size, actual in sizes
        ):
            problem = f"{what} has the shape {list(shape)}, the input {name} takes {declared_shape}"
            raise StageError(problem, "change its shape")
        for size, actual in sizes:
            self._bind(size, actual, what)
        values = tensor.values()
        if values.dtype.kind in "fc" and (count := int(np.isnan(values).sum())):
            raise StageError(f"{what} has {count} NaN of {values.size} values", "replace them")
        self.tensors[name] = tensor
        self.origins[name] = [origin]

    def add_images(self, name: str, files: Sequence[Given]) -> None:
        """Take images as a batch.

        Raises: StageError: they cannot be read or do not fit.
        """
        declared = self._declared[name]
        fields, shape = declared["preprocess"], list(declared["shape"])
        if len(shape) == 4:
            self._bind(shape[0], len(files), f"the images of {name}")
        batch = shape[0] if len(shape) == 4 else 1
        if isinstance(batch, int) and batch != len(files):
            problem = f"the input {name} takes {batch} at a time, {len(files)} given"
            raise StageError(problem, f"name {batch}: --input {name}=FILE, repeated")
        dims = [shape[axis] for axis in size_axes(fields)]
        for image in files if any(isinstance(dim, str) for dim in dims) else ():
            for dim, size in zip(
                dims, self._fitted(dims, size_of(image.path, fields)), strict=True
            ):
                self._bind(dim, size, image.shown)
        concrete = concrete_shape(shape, {dim: size for dim, (size, _) in self._sizes.items()})
        paths = [image.path for image in files]
        self.tensors[name] = read_images(paths, fields, name, concrete, declared["dtype"])
        self.origins[name] = [image.shown for image in files]
        self.steps[name] = describe_images(fields, concrete)

    def _bind(self, dim: int | str, size: int, what: str) -> None:
        """Note the size of a dimension.

        Raises: StageError: it is another one, or out of range.
        """
        if not isinstance(dim, str):
            return
        earlier, other = self._sizes.setdefault(dim, (size, what))
        if earlier != size:
            raise StageError(
                f"{dim} is {size} in {what}, but {earlier} in {other}", "give files of equal sizes"
            )
        span = self._spans[dim]
        multiple = span["multiple_of"] or 1
        if not span["min"] <= size <= span["max"] or size % multiple:
            steps = f" in steps of {multiple}" if multiple != 1 else ""
            problem = f"{dim} is {size} in {what}, the engine takes {span['min']} to {span['max']}"
            raise StageError(problem + steps, f"change it, or widen dims.{dim} and build again")

    def _fitted(self, dims: Sequence[int | str], size: Size) -> Sequence[int]:
        """Choose the allowed size nearest to an image's, in its proportions."""
        spans = [self._spans[dim] if isinstance(dim, str) else None for dim in dims]
        size = (min(size), min(size)) if dims[0] == dims[1] else size
        pairs = [(span, side) for span, side in zip(spans, size, strict=True) if span]
        scale = min(1.0, *(span["max"] / side for span, side in pairs))
        scale = max(scale, *(span["min"] / side for span, side in pairs))
        fitted = []
        for span, side in zip(spans, size, strict=True):
            multiple = (span and span["multiple_of"]) or 1
            scaled = round(side * scale) // multiple * multiple
            fitted.append(max(span["min"], min(span["max"], scaled)) if span else side)
        return fitted

    def _format_shape(self, name: str) -> str:
        return f"[{', '.join(map(str, self._declared[name]['shape']))}]"


def run(job: Job) -> StageResult:
    """Write the inputs of an engine to an .npz file.

    Raises: StageError: a file cannot be read or does not fit, or an input is missing.
    """
    declared = job.options["inputs"]
    files = [Given(name, Path(path), shown) for name, path, shown in job.options["files"]]
    read = Inputs(declared, job.options["dims"])
    images: dict[str, list[Given]] = {}
    for file in files:
        if file.path.suffix.lower() not in ARRAY_SUFFIXES:
            images.setdefault(file.name, []).append(file)
            continue
        for name, tensor, what in _arrays(file, declared):
            if name in read.tensors:
                problem = f"the input {name} is given twice"
                other = read.origins[name][0]
                hint = "give a batch as one array"
                hint = hint if other == file.shown else f"remove {file.shown} or {other}"
                raise StageError(problem, hint)
            read.add_array(name, tensor, what, file.shown)
    for name, files in images.items():
        if name in read.tensors:
            problem = f"the input {name} is given as an image and as an array"
            raise StageError(problem, f"remove {files[0].shown} or {read.origins[name][0]}")
        read.add_images(name, files)
    missing = [name for name in declared if name not in read.tensors]
    if missing:
        text = f"the engine also needs the input {', '.join(missing)}"
        raise StageError(text, f"add --input {missing[0]}=FILE")
    save_tensors(job.outputs["inputs"], {name: read.tensors[name] for name in declared})
    return StageResult(
        figures={
            "inputs": {
                name: {
                    "files": read.origins[name],
                    "dtype": read.tensors[name].dtype,
                    "shape": list(read.tensors[name].shape),
                    "preprocess": read.steps.get(name, ""),
                }
                for name in declared
            }
        }
    )


def _arrays(
    given: Given, declared: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Tensor, str]]:
    """Yield input, tensor and name for messages of a file's arrays.

    Raises: StageError: it cannot be read, or has no array of the input's name.
    """
    kind = given.path.suffix.lower()
    try:
        if kind == ".npy":
            yield given.name, tensor_of(_numbers(read_npy(given.path), given.shown)), given.shown
            return
        arrays: Mapping[str, Any] = NpzFile(given.path)
        if _TENSORS in arrays:  # written by us: types unknown to numpy, inputs of golden cases
            arrays = load_tensors(given.path)
            golden = {n[len(_GOLDEN_INPUT) :]: t for n, t in arrays.items() if n[:3] == "in."}
            arrays = golden or arrays
        names = list(arrays)
        single = {names[0]} if len(names) == 1 else set()
        if not names:
            raise StageError(f"{given.shown} has no arrays", "save it with numpy.savez")
        if given.name:
            chosen = {given.name: given.name if given.name in arrays else next(iter(single), "")}
        elif len(declared) == 1 and single:
            chosen = {next(iter(declared)): names[0]}
        else:
            chosen = {name: name for name in arrays}
        for name, key in chosen.items():
            if name not in declared or not key:
                wrong, choices = (key, declared) if key else (name, names)
                near = nearest(wrong, choices, count=1)
                every = f"inputs: {', '.join(declared)}" if key else f"it has {', '.join(names)}"
                hint = f"did you mean {near[0]}?" if near else every
                problem = f"has no array {name}" if not key else f"has the array {key}, no input"
                raise StageError(f"{given.shown} {problem}", hint)
            value = arrays[key]
            what = f"{given.shown}: {key}"
            yield (
                name,
                value if isinstance(value, Tensor) else tensor_of(_numbers(value, what)),
                what,
            )
    except (OSError, ValueError) as error:
        hint = f"save numbers or strings with numpy.save{'z' if kind == '.npz' else ''}"
        raise StageError(f"{given.shown} cannot be read: {error}", hint) from error


def _numbers(array: Array, what: str) -> Array:
    if array.dtype.kind not in "biufcSU":
        raise StageError(f"{what} has the type {array.dtype}", "save it as numbers or strings")
    return array
