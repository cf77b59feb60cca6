"""The inputs of an engine from images and arrays in files, and the names of its classes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import require_dtype
from buildsys.models.images import (
    Size,
    decode_image,
    describe_images,
    read_images,
    size_axes,
    size_of,
)
from buildsys.onnx_graphs.tensors import Tensor, load_arrays, read_npy, save_tensors, tensor_of
from buildsys.workers.job import Job, StageResult

ARRAY_SUFFIXES = (".npy", ".npz")
_GOLDEN_INPUT = "in."  # in the files of golden cases
Fields = Mapping[str, Any]


class InputFile(NamedTuple):
    """A file for an input."""

    name: str  # "" for all inputs of an .npz file
    path: Path
    typed: str  # on the command line


def run(job: Job) -> StageResult:
    """Write the inputs of an engine to an .npz file; ``load_engine`` checks their shapes.

    Raises: StageError: a file cannot be read or does not fit, or an input is missing.
    """
    declared: Mapping[str, Fields] = job.options["inputs"]  # name -> shape, dtype, preprocess
    tensors: dict[str, Tensor] = {}
    origins: dict[str, list[InputFile]] = {}
    steps: dict[str, str] = {}  # how images are prepared
    images: dict[str, list[InputFile]] = {}

    def add(name: str, tensor: Tensor, files: list[InputFile]) -> None:
        if name in tensors:
            problem = f"the input {name} is given twice"
            raise StageError(problem, "name each once; give a batch as one array, or as images")
        tensors[name], origins[name] = tensor, files

    for entry in job.options["files"]:
        file = InputFile(entry[0], Path(entry[1]), entry[2])
        if file.path.suffix.lower() in ARRAY_SUFFIXES:
            for name, tensor in _read_arrays(file, declared):
                add(name, tensor, [file])
        else:
            images.setdefault(file.name, []).append(file)
    for name, files in images.items():
        if declared[name]["preprocess"].get("inside"):
            tensor = _raw_images(declared[name], files)
            add(name, tensor, files)
            steps[name] = f"{' x '.join(map(str, tensor.shape[-3:-1]))}, preprocessed by the engine"
            continue
        shape = _image_shape(name, declared[name], job.options["dims"], files)
        fields, dtype = declared[name]["preprocess"], declared[name]["dtype"]
        add(name, read_images([file.path for file in files], fields, name, shape, dtype), files)
        steps[name] = describe_images(fields, shape)
    if missing := [name for name in declared if name not in tensors]:
        text = f"the engine also needs the input {', '.join(missing)}"
        raise StageError(text, f"add --input {missing[0]}=FILE")
    save_tensors(job.outputs["inputs"], {name: tensors[name] for name in declared})
    figures = {
        name: {
            "files": [file.typed for file in origins[name]],
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "preprocess": steps.get(name, ""),
        }
        for name in declared
    }
    labels = {weights: categories(weights) for weights in job.options["weights"]}
    return StageResult(figures={"inputs": figures, "labels": labels})


def _raw_images(declared: Fields, files: Sequence[InputFile]) -> Tensor:
    """Decode images of one size. Raises: StageError: their sizes or number do not fit."""
    color = declared["preprocess"]["color"]
    images = [decode_image(file.path, color) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            size, first = (" x ".join(map(str, i.shape[:2])) for i in (image, images[0]))
            problem = f"{file.typed} has {size} pixels, and {files[0].typed} {first}"
            raise StageError(problem, "give images of one size as a batch, or one at a time")
    return tensor_of(np.stack(images))


def _image_shape(
    name: str, declared: Fields, dims: Mapping[str, Any], files: Sequence[InputFile]
) -> tuple[int, ...]:
    """Choose the shape of a batch of images; the first one decides on dynamic sizes."""
    fields, shape = declared["preprocess"], declared["shape"]
    batch = shape[0] if len(shape) == 4 else 1
    if isinstance(batch, int) and batch != len(files):
        problem = f"the input {name} takes {batch} at a time, {len(files)} given"
        raise StageError(problem, f"name {batch}: --input {name}=FILE, repeated")
    sizes = {batch: len(files)}
    sides = [shape[axis] for axis in size_axes(fields)]
    if any(isinstance(side, str) for side in sides):
        sizes |= zip(sides, _fit(sides, size_of(files[0].path, fields), dims), strict=True)
    return concrete_shape(shape, {str(dim): size for dim, size in sizes.items()})


def _fit(sides: Sequence[int | str], size: Size, dims: Mapping[str, Any]) -> Iterator[int]:
    """Choose the allowed size nearest to an image's, in its proportions."""
    spans = [dims[side] if isinstance(side, str) else None for side in sides]
    size = (min(size), min(size)) if sides[0] == sides[1] else size
    pairs = [(span, side) for span, side in zip(spans, size, strict=True) if span]
    scale = min(1.0, *(span["max"] / side for span, side in pairs))
    scale = max(scale, *(span["min"] / side for span, side in pairs))
    for span, side in zip(spans, size, strict=True):
        multiple = (span and span["multiple_of"]) or 1
        scaled = round(side * scale) // multiple * multiple
        yield max(span["min"], min(span["max"], scaled)) if span else side


def _read_arrays(file: InputFile, declared: Mapping[str, Fields]) -> Iterator[tuple[str, Tensor]]:
    """Yield input and tensor of a file's arrays, converted to types that numpy does not know.

    Raises: StageError: it cannot be read, or has no array of the input's name.
    """
    try:
        if file.path.suffix.lower() == ".npy":
            arrays = {file.name: read_npy(file.path)}
        else:
            arrays = load_arrays(file.path)
            golden = [name for name in arrays if name.startswith(_GOLDEN_INPUT)]
            arrays = {n.removeprefix(_GOLDEN_INPUT): arrays[n] for n in golden or arrays}
        inputs = [file.name] if file.name else [*(declared if len(declared) == 1 else arrays)]
        for name in inputs:
            key = next(iter(arrays)) if len(arrays) == len(inputs) == 1 else name
            if key not in arrays or name not in declared:
                problem = f"no array {name}" if key not in arrays else f"the array {name}, no input"
                listed = f"inputs: {', '.join(declared)}; it has {', '.join(arrays) or 'no arrays'}"
                raise StageError(f"{file.typed} has {problem}", listed)
            array, dtype = arrays[key], declared[name]["dtype"]
            require_dtype(array, dtype, file.typed, f"the input {name}")
            yield name, tensor_of(array, dtype)
    except (OSError, ValueError) as error:
        hint = "save numbers or strings with numpy.save or numpy.savez"
        raise StageError(f"{file.typed} cannot be read: {error}", hint) from error


def categories(name: str) -> list[str]:
    """List the classes of torchvision's weights, such as ``ResNet50_Weights.IMAGENET1K_V2``.

    Raises: StageError: torchvision has no such weights, or they have no categories.
    """
    from torchvision.models import get_weight

    try:
        weights = get_weight(name)
    except (KeyError, ValueError) as error:
        hint = "torchvision.models lists all weights"
        raise StageError(f"torchvision has no weights {name}", hint) from error
    names = weights.meta.get("categories")
    if not names:
        raise StageError(f"{name} has no categories", "name the classes in a file")
    return list(names)
