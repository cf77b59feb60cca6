"""Golden inputs: the same values on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.manifest.value_ranges import INTEGER_RANGES, default_high
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.npz_file import NpzFile
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Array, Tensor, tensor_of
from buildsys.system.files import IMAGE_SUFFIXES, image_files

Data = Mapping[str, Any]  # the manifest's ``data`` of one input
_MAX_PIXELS = 178_956_970  # as Pillow limits files
_MODES = {"rgb": "RGB", "bgr": "RGB", "gray": "L"}
_AXES = {"nchw": (1, 2, 3), "nhwc": (3, 1, 2)}  # of channels, height, width
_EXTREME_FACTOR, _LEAST_EXTREME = 4.0, 6.0  # of normal values, in standard deviations


def golden_input(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    data: Data | None,
    *,
    case: str,
    seed: int,
    project: Path,
    extreme: int = 0,
    half: bool = False,
) -> Tensor:
    """Return the golden values of one input in one case.

    ``extreme`` 1 or -1 takes random values from both ends of their range, or in the other order;
    with ``half`` only in the second half of the input.
    Raises: StageError: the data does not fit the input's shape or dtype, or cannot be read.
    """
    if not data and _is_float(dtype):
        data = {"random": "normal", "mean": 0.0, "std": 1.0}
    elif not data:
        data = {"random": "integers", "low": 0, "high": default_high(dtype)}
    if "npz" in data:
        return _from_npz(data, name, shape, dtype, case, project)
    if "python" in data:
        where = f"input {name}, case {case}"
        return values_from_callable(data["python"], shape, dtype, case, seed, project, where)
    if "images" in data:
        files = find_images(data, name, shape[0] if shape else 1, project)
        return read_images(files, data, name, shape, dtype)
    if "constant" in data:
        value = data["constant"]
        is_integer = dtype != "string" and not _is_float(dtype)
        wrong_kind = isinstance(value, str) != (dtype == "string")
        if wrong_kind or (is_integer and not float(value).is_integer()):
            raise StageError(f"inputs.{name}.data: the constant {value!r} is not of type {dtype}")
        if is_integer:
            _require_representable((int(value),), name, dtype)
        return tensor_of(np.full(shape, value), dtype)
    key = int.from_bytes(hashlib.sha256(f"{name}/{case}".encode()).digest()[:16], "little")
    stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key])))
    if not half:
        return _random(data, name, shape, dtype, stream, extreme)
    size = prod(shape)
    parts = [
        _random(data, name, (count,), dtype, stream, ends).array
        for count, ends in ((size // 2, 0), (size - size // 2, extreme))
    ]
    return Tensor(np.concatenate(parts).reshape(shape), dtype)


def _random(
    data: Data,
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    stream: np.random.Generator,
    extreme: int,
) -> Tensor:
    kind, where = data["random"], f"inputs.{name}.data"

    def ends() -> Array:
        return np.asarray((stream.random(shape) < 0.5) == (extreme > 0))

    if kind == "integers":
        low, high = int(data["low"]), int(data["high"])
        if low >= high:
            raise StageError(
                f"{where}: there is no integer from {low} to below {high}", "high is exclusive"
            )
        _require_representable((low, high - 1), name, dtype)
        if extreme:
            return tensor_of(np.where(ends(), high - 1, low), dtype)
        return tensor_of(stream.integers(low, high, shape, dtype=np.int64), dtype)
    if not _is_float(dtype):
        raise StageError(f"{where}: random {kind} values cannot be {dtype}", "use random: integers")

    def draw() -> Array:
        if kind == "normal":
            values = np.asarray(stream.standard_normal(shape))
            if extreme and values.size:  # a small input has no large value by chance
                largest = float(np.abs(values).max())
                values = extreme * values * max(_EXTREME_FACTOR, _LEAST_EXTREME / largest)
            return np.asarray(data["mean"] + data["std"] * values)
        if extreme:
            return np.asarray(np.where(ends(), data["high"], data["low"]))
        return np.asarray(data["low"] + (data["high"] - data["low"]) * stream.random(shape))

    values = draw()
    return tensor_of(values + 1j * draw() if dtype.startswith("complex") else values, dtype)


def _require_representable(values: tuple[int, ...], name: str, dtype: str) -> None:
    low, high = (0, 1) if dtype == "bool" else INTEGER_RANGES.get(dtype, (-(2**63), 2**63 - 1))
    outside = [value for value in values if not low <= value <= high]
    if outside:
        raise StageError(
            f"inputs.{name}.data: {outside[0]} is outside the range of {dtype}, {low} to {high}"
        )


def _is_float(dtype: str) -> bool:
    return "float" in dtype or "complex" in dtype


def _from_npz(
    data: Data, name: str, shape: tuple[int, ...], dtype: str, case: str, project: Path
) -> Tensor:
    array, what = read_array(project / data["npz"], data["npz"], data["key"] or name)
    if array.ndim != len(shape) or any(
        found < size for found, size in zip(array.shape, shape, strict=True)
    ):
        raise StageError(
            f"{what} has the shape {array.shape}, input {name} needs {shape} in the case {case}",
            "arrays are cut to each case's shape from the front, so they must be at least as"
            " large as the largest case",
        )
    require_dtype(array, dtype, what, f"input {name}")
    return tensor_of(array[tuple(slice(size) for size in shape)], dtype)


def read_array(file: Path, shown: str, key: str) -> tuple[Array, str]:
    """Return one array of an .npz file, and its name for messages.

    Raises: StageError: no such file or array.
    """
    try:
        arrays = NpzFile(file)
        if key not in arrays:
            raise StageError(f"{shown} has no array {key}", f"it has {', '.join(arrays)}")
        return arrays[key], f"{shown}: {key}"
    except (OSError, ValueError) as error:
        raise StageError(f"{shown} cannot be read as an .npz file: {error}") from error


def require_dtype(array: Array, dtype: str, what: str, of: str) -> None:
    """Raise StageError if a stored array's dtype differs from an input's."""
    expected = "float32" if dtype in BIT_DTYPES and _is_float(dtype) else dtype
    found = tensor_of(array).dtype
    if found not in (expected, dtype):
        raise StageError(f"{what} is {found}, {of} is {dtype}", f"save it as {expected}")


def values_from_callable(
    reference: str,
    shape: tuple[int, ...],
    dtype: str,
    which: str | int,
    seed: int,
    project: Path,
    where: str,
) -> Tensor:
    """Return a user callable's values for one case or batch.

    Raises: StageError: it raised, or its values do not fit the input.
    """
    make = load_callable(reference, project)
    with reraise_as_stage_error(f"{reference} failed for {where}", project):
        array = np.asarray(make(shape, dtype, which, seed))
    if array.shape != shape:
        raise StageError(
            f"{reference} returned the shape {array.shape} for {where}; expected {shape}"
        )
    found = tensor_of(array).dtype
    if found != dtype and not (dtype in BIT_DTYPES and found == "float32"):
        raise StageError(f"{reference} returned {found} for {where}; expected {dtype}")
    return tensor_of(array, dtype)


def find_images(data: Data, name: str, count: int, project: Path) -> list[Path]:
    """Return the first ``count`` images of the folder.

    Raises: StageError: there are fewer.
    """
    found = image_files(str(project / data["images"]))
    if not found:
        raise StageError(
            f"{data['images']} has no images for the input {name}",
            f"image files end in {' '.join(IMAGE_SUFFIXES)}",
        )
    if len(found) < count:
        raise StageError(
            f"{data['images']} has {len(found)} images for the input {name}, {count} are required",
            "add images, or reduce the number of batches or batch_size",
        )
    return [Path(path) for path in found[:count]]


def read_images(
    files: Sequence[Path], data: Data, name: str, shape: tuple[int, ...], dtype: str
) -> Tensor:
    """Return one batch of images as a tensor of ``shape``.

    Raises: StageError: the shape or dtype does not fit images, or a file cannot be read as one.
    """
    layout = data["layout"]
    expected = 1 if data["color"] == "gray" else 3
    if len(shape) != 4 or shape[_AXES[layout][0]] != expected:
        raise StageError(
            f"the input {name} has the shape {shape}, which does not fit {data['color']} images"
            f" in layout {layout}",
            f"{layout} has {expected} channels at index {_AXES[layout][0]} of 4 dimensions",
        )
    channels, height, width = (shape[axis] for axis in _AXES[layout])
    for field in ("mean", "std"):
        if len(data[field]) not in (1, channels):
            raise StageError(
                f"{field} has {len(data[field])} values, images of the input {name} have {channels}"
                " channels",
                "give one value, or one per channel",
            )
    mean, std = np.asarray(data["mean"], np.float32), np.asarray(data["std"], np.float32)
    pixels = np.stack([_pixels(file, data, (height, width)) for file in files])
    values = (pixels.astype(np.float32) / np.float32(data["divide"]) - mean) / std
    if dtype == "uint8" and not np.array_equal(values, pixels):
        raise StageError(
            f"the input {name} is uint8, but divide, mean or std change the pixel values",
            "set divide: 1",
        )
    return tensor_of(values if layout == "nhwc" else values.transpose(0, 3, 1, 2), dtype)


def describe_images(data: Data, shape: tuple[int, ...]) -> str:
    """Return the preprocessing of each image in words."""
    _, height, width = (shape[axis] for axis in _AXES[data["layout"]])
    size = f"resized to {height} x {width}"
    if data["resize"] is not None:
        size = f"shorter side resized to {data['resize']}, centre {height} x {width} cut out"
    mean, std = (" ".join(f"{value:g}" for value in data[field]) for field in ("mean", "std"))
    scale = f"/ {data['divide']:g}, - ({mean}), / ({std})"
    return f"{size} ({data['interpolation']}), {data['color']}, {scale}"


def _pixels(file: Path, data: Data, size: tuple[int, int]) -> Array:
    """Return one image, resized and cropped, as height x width x channels."""
    from PIL import Image  # only models with images need it

    resampling = Image.Resampling[data["interpolation"].upper()]
    height, width = size
    try:
        with Image.open(file) as opened:
            image = opened.convert(_MODES[data["color"]])
        if data["resize"] is None:
            image = image.resize((width, height), resampling)
        else:
            scale = data["resize"] / min(image.size)
            wide, high = (max(data["resize"], round(side * scale)) for side in image.size)
            if wide < width or high < height:
                raise ValueError(
                    f"resized to {wide} x {high}, it is smaller than the crop of {width} x {height}"
                )
            if wide * high > _MAX_PIXELS:  # of an image that is long and thin
                raise ValueError(f"resized to {wide} x {high}, it is larger than any image")
            left, top = (wide - width) // 2, (high - height) // 2
            image = image.resize((wide, high), resampling)
            image = image.crop((left, top, left + width, top + height))
    # UnidentifiedImageError is an OSError
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        shown = f"{file.parent.name}/{file.name}"
        raise StageError(f"{shown} cannot be read as an image: {error}") from error
    pixels = np.asarray(image)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return pixels[:, :, ::-1] if data["color"] == "bgr" else pixels
