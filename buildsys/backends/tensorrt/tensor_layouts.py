"""Memory layouts of an engine's inputs and outputs.

Source: TensorRT developer guide, "I/O Formats": channels in blocks (CHW4: [N, C/4, H, W, 4]) or
last (HWC8: [N, H, W, C up to a multiple of 8]), padded with zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

LINEAR = "linear"


class _Layout(NamedTuple):
    multiple: int  # of the channels
    is_blocked: bool  # channels in blocks, or last
    spatial: int  # dimensions after the channels


_LAYOUTS = {
    "chw2": _Layout(2, True, 2), "chw4": _Layout(4, True, 2), "chw16": _Layout(16, True, 2),
    "chw32": _Layout(32, True, 2), "cdhw32": _Layout(32, True, 3), "hwc": _Layout(1, False, 2),
    "hwc8": _Layout(8, False, 2), "hwc16": _Layout(16, False, 2), "dhwc": _Layout(1, False, 3),
    "dhwc8": _Layout(8, False, 3),
}  # fmt: skip


def packed(array: Array, layout: str) -> Array:
    """Return an array as a layout stores it."""
    if layout == LINEAR:
        return array
    found, axis = _layout(layout, array.shape)
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, -array.shape[axis] % found.multiple)
    filled = np.pad(array, padding) if padding[axis][1] else array
    if not found.is_blocked:
        return np.ascontiguousarray(np.moveaxis(filled, axis, -1))
    blocks = filled.shape[axis] // found.multiple
    split = filled.reshape(*filled.shape[:axis], blocks, found.multiple, *filled.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def packed_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of ``packed`` for an array of a shape."""
    if layout == LINEAR:
        return shape
    found, axis = _layout(layout, shape)
    blocks = -(-shape[axis] // found.multiple)
    if found.is_blocked:
        return (*shape[:axis], blocks, *shape[axis + 1 :], found.multiple)
    return (*shape[:axis], *shape[axis + 1 :], blocks * found.multiple)


def unpacked(memory: Array, layout: str, shape: tuple[int, ...]) -> Array:
    """Return the array of a shape from memory in a layout."""
    if layout == LINEAR:
        return memory
    found, axis = _layout(layout, shape)
    if found.is_blocked:
        split = np.moveaxis(memory, -1, axis + 1)
        filled = split.reshape(*split.shape[:axis], -1, *split.shape[axis + 2 :])
    else:
        filled = np.moveaxis(memory, -1, axis)
    cut = (*(slice(None) for _ in range(axis)), slice(0, shape[axis]))
    return np.ascontiguousarray(filled[cut])


def _layout(name: str, shape: tuple[int, ...]) -> tuple[_Layout, int]:
    """Return a layout and the axis of the channels."""
    found = _LAYOUTS.get(name)
    if found is None:
        raise StageError(f"tensors in the format {name} cannot be inputs or outputs here")
    axis = len(shape) - 1 - found.spatial
    if axis < 0:
        text = f"a tensor of shape {list(shape)} has no channels for the format {name}"
        raise StageError(text)
    return found, axis
