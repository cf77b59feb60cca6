"""Image files as tensors: decoding, resizing, cropping, normalization.

Sizes are rounded as torchvision's transforms do, so that a preprocessed image equals that of its
weights bit by bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.models.user_code import import_library
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of
from buildsys.system.files import IMAGE_FORMATS, IMAGE_SUFFIXES, image_files

if TYPE_CHECKING:
    from PIL import Image

Fields = Mapping[str, Any]  # the fields of ``data`` with images, or of ``preprocess``
Size = tuple[int, int]  # height, width
_MODES = {"rgb": "RGB", "bgr": "RGB", "gray": "L"}
_AXES = {"nchw": (-3, -2, -1), "nhwc": (-1, -3, -2)}  # channels, height, width


class EncodedImage(NamedTuple):
    """The content of an image file."""

    name: str
    content: bytes


ImageFile = Path | EncodedImage


def find_images(data: Fields, name: str, count: int, project: Path) -> list[Path]:
    """Find the first ``count`` images of the folder. Raises: StageError: there are fewer."""
    paths = image_files(str(project / data["images"]))
    if len(paths) < count:
        raise StageError(
            f"{data['images']} has {len(paths)} images for the input {name}, {count} are required",
            f"add images ({' '.join(IMAGE_SUFFIXES)}), or reduce the number of batches or"
            " batch_size",
        )
    return [Path(path) for path in paths[:count]]


def read_images(
    files: Sequence[ImageFile], data: Fields, name: str, shape: tuple[int, ...], dtype: str
) -> Tensor:
    """Read one batch of images as a tensor of ``shape``.

    A shape without a batch takes one image.
    Raises: StageError: the shape or dtype does not fit images, or a file cannot be read as one.
    """
    expected = 1 if data["color"] == "gray" else 3
    channels, height, width = _AXES[data["layout"]]
    if len(shape) not in (3, 4) or shape[channels] != expected:
        raise StageError(
            f"the input {name} has the shape {shape}, which does not fit {data['color']} images"
            f" in layout {data['layout']}",
            f"declare {expected} channels at axis {channels}, or correct color or layout",
        )
    for field in ("mean", "std"):
        if len(data[field]) not in (1, expected):
            text = f"{field} of the input {name} has {len(data[field])} values"
            raise StageError(text, f"give one value, or {expected}")
    mean, std = np.asarray(data["mean"], np.float32), np.asarray(data["std"], np.float32)
    pixels = np.stack([_pixels(file, data, (shape[height], shape[width])) for file in files])
    values = (pixels.astype(np.float32) / np.float32(data["divide"]) - mean) / std
    if dtype == "uint8" and not np.array_equal(values, pixels):
        raise StageError(
            f"the input {name} is uint8, but divide, mean or std change the pixel values",
            "set divide: 1",
        )
    values = values if data["layout"] == "nhwc" else values.transpose(0, 3, 1, 2)
    return tensor_of(values.reshape(shape) if len(shape) == 3 else values, dtype)


def decode_image(file: ImageFile, color: str) -> Array:
    """Decode an image as engines with preprocessing take it: uint8, channels last.

    Raises: StageError: it cannot be read as an image, or has more than 8 bits per channel.
    """
    return _with_channels(np.asarray(_decoded(file, _MODES[color])))


def size_of(file: Path, data: Fields) -> Size:
    """Measure height and width of an image after ``resize``, before the crop.

    Raises: StageError: it cannot be read as an image.
    """
    image = _decoded(file, "L")
    size = image.height, image.width
    return size if data["resize"] is None else _resized(size, data["resize"])


def size_axes(data: Fields) -> tuple[int, int]:
    """Return the axes of height and width, from the end."""
    return _AXES[data["layout"]][1:]


def describe_images(data: Fields, shape: Sequence[int | str]) -> str:
    """Describe the preprocessing of each image in words."""
    _, height, width = (shape[axis] for axis in _AXES[data["layout"]])
    size = f"resized to {height} x {width}"
    if data["resize"] is not None:
        size = f"shorter side resized to {data['resize']}, centre {height} x {width} cut out"
    elif data.get("inside") and data["size"] is None:
        size = f"{height} x {width}"
    elif data.get("pad") is not None:
        size = f"scaled into {height} x {width}, the rest filled with {data['pad']}"
    mean, std = (" ".join(f"{value:g}" for value in data[field]) for field in ("mean", "std"))
    scale = f"/ {data['divide']:g}, - ({mean}), / ({std})"
    return f"{size} ({data['interpolation']}), {data['color']}, {scale}"


def _pixels(file: ImageFile, data: Fields, size: Size) -> Array:
    """Load a resized, cropped or padded image, channels last."""
    image = _decoded(file, _MODES[data["color"]])
    from PIL import Image  # only models with images need it

    resampling = Image.Resampling[data["interpolation"].upper()]
    original, (height, width) = (image.height, image.width), size
    if data["resize"] is not None:
        high, wide = _resized(original, data["resize"])
        if wide < width or high < height:
            text = f"resized to {wide} x {high}, it is smaller than the crop of {width} x {height}"
            raise _unreadable(file, text)
        left, top = round((wide - width) / 2), round((high - height) / 2)
        image = image.resize((wide, high), resampling)
        image = image.crop((left, top, left + width, top + height))
    elif data.get("pad") is not None:
        scale = min(height / original[0], width / original[1])
        high, wide = (max(1, round(side * scale)) for side in original)
        inside = image.resize((wide, high), resampling)
        image = Image.new(image.mode, (width, height), (data["pad"],) * len(image.getbands()))
        image.paste(inside, ((width - wide) // 2, (height - high) // 2))
    else:
        image = image.resize((width, height), resampling)
    pixels = _with_channels(np.asarray(image))
    return pixels[:, :, ::-1] if data["color"] == "bgr" else pixels


def _with_channels(pixels: Array) -> Array:
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _resized(size: Size, shorter: int) -> Size:
    """Compute height and width with another shorter side."""
    longer = int(shorter * max(size) / min(size))
    return (shorter, longer) if size[0] <= size[1] else (longer, shorter)


def _decoded(file: ImageFile, mode: str) -> Image.Image:
    """Decode an image in a mode, turned by its EXIF orientation.

    Raises: StageError: it cannot be read as an image, or has more than 8 bits per channel.
    """
    import_library("PIL", Path.cwd())
    from PIL import Image, ImageOps

    opened_from = file if isinstance(file, Path) else BytesIO(file.content)
    try:
        with warnings.catch_warnings(), Image.open(opened_from, formats=IMAGE_FORMATS) as opened:
            warnings.simplefilter("ignore")  # large images are allowed below the limit
            if opened.mode.startswith(("I", "F")):
                raise _unreadable(file, "it has more than 8 bits per channel")
            return ImageOps.exif_transpose(opened).convert(mode)
    except StageError:
        raise
    except Exception as error:  # Pillow raises many classes for damaged files
        raise _unreadable(file, error) from error


def _unreadable(file: ImageFile, why: object) -> StageError:
    path = Path(file.name) if isinstance(file, EncodedImage) else file
    name = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    hint = "name another file, or save it again as PNG of 8 bits"
    return StageError(f"{name} cannot be read as an image: {why}", hint)
