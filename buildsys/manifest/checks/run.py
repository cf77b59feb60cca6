"""Checks of the fields for `run`: preprocessing and labels."""

from __future__ import annotations

from typing import Any

from buildsys.manifest.checks.view import ManifestView, contains_refused
from buildsys.manifest.problem import Problems
from buildsys.manifest.value_ranges import IMAGE_DTYPES

CHANNEL_AXES = {"nchw": -3, "nhwc": -1}  # from the end: the batch is optional


def run_problems(view: ManifestView) -> Problems:
    """Yield preprocessing unsuitable for its input, and labels missing classes."""
    for (section, name), tensor in view.maps("inputs", ...):
        fields = tensor.get("preprocess")
        if isinstance(fields, dict):
            yield from _preprocess(view, (section, name, "preprocess"), tensor, fields)
    for (_, name), tensor in view.maps("outputs", ...):
        names, shape = view.list("outputs", name, "labels", "names"), tensor.get("shape")
        size = shape[-1] if isinstance(shape, list) and shape else None
        if names and isinstance(size, int) and len(names) != size:
            text = f"{len(names)} names for the {size} classes of the output"
            yield view.problem(("outputs", name, "labels", "names"), text, "name each class once")


def _preprocess(
    view: ManifestView, path: tuple[Any, ...], tensor: dict[str, Any], fields: dict[str, Any]
) -> Problems:
    dtype, shape = tensor.get("dtype", "float32"), tensor.get("shape")
    if isinstance(dtype, str) and dtype not in IMAGE_DTYPES:
        text = f"cannot convert images to dtype {dtype}"
        yield view.problem(path, text, f"supported: {', '.join(IMAGE_DTYPES)}")
    color, layout = fields.get("color", "rgb"), fields.get("layout", "nchw")
    channels = 1 if color == "gray" else 3
    known = isinstance(shape, list) and not contains_refused([*shape, color, layout])
    if isinstance(shape, list) and known and layout in CHANNEL_AXES:
        axis = CHANNEL_AXES[layout]
        if len(shape) not in (3, 4) or shape[axis] != channels:
            text = f"the shape {_flow(shape)} does not fit {color} images in layout {layout}"
            letters = "channels, height, width" if layout == "nchw" else "height, width, channels"
            hint = f"expected [batch, {letters}] or [{letters}] with {channels} channels"
            yield view.problem(path, text, hint)
    for field in ("mean", "std"):
        values = fields.get(field)
        if isinstance(values, list) and len(values) not in (1, channels) and values:
            text = f"{len(values)} values for {channels} channels"
            yield view.problem((*path, field), text, "give one value, or one per channel")
    if fields.get("pad") is not None and fields.get("resize") is not None:
        text = "an image is either padded or cropped"
        yield view.problem((*path, "pad"), text, "remove pad or resize", of_key=True)


def _flow(shape: list[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"
