"""Input values from image files: the same pixels on every machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of
from buildsys.system.files import IMAGE_SUFFIXES, image_files

Data = Mapping[str, Any]  # the manifest's ``data`` of an input with ``images``

_MODES = {"rgb": "RGB", "bgr": "RGB", "gray": "L"}
_AXES = {"nchw": (1, 2, 3), "nhwc": (3, 1, 2)}  # of channels, height, width


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
