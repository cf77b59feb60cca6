"""Memory layouts of an engine's inputs and outputs.

Source: TensorRT developer guide, "I/O Formats": channels in blocks (CHW4: [N, C/4, H, W, 4]) or
last (HWC8: [N, H, W, C up to a multiple of 8]), padded with zeros.
"""

from __future__ import annotations

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

LINEAR = "linear"


_LAYOUTS = {  # multiple of the channels, channels in blocks or last, dimensions after the channels
    "chw2": (2, True, 2), "chw4": (4, True, 2), "chw16": (16, True, 2), "chw32": (32, True, 2),
    "cdhw32": (32, True, 3), "hwc": (1, False, 2), "hwc8": (8, False, 2), "hwc16": (16, False, 2),
    "dhwc": (1, False, 3), "dhwc8": (8, False, 3),
}  # fmt: skip


def packed(array: Array, layout: str) -> Array:
    """Return an array as a layout stores it."""
    if layout == LINEAR:
        return array
    shape, (axis, blocks, size) = array.shape, _blocks(array.shape, layout)
    padding = [
        (0, blocks * size - shape[axis] if dimension == axis else 0)
        for dimension in range(len(shape))
    ]
    split = np.pad(array, padding).reshape(*shape[:axis], blocks, size, *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def packed_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of ``packed`` for an array of a shape."""
    if layout == LINEAR:
        return shape
    axis, blocks, size = _blocks(shape, layout)
    return (*shape[:axis], blocks, *shape[axis + 1 :], size)


def unpacked(memory: Array, layout: str, shape: tuple[int, ...]) -> Array:
    """Return the array of a shape from memory in a layout."""
    if layout == LINEAR:
        return memory
    axis, blocks, size = _blocks(shape, layout)
    split = np.moveaxis(memory, -1, axis + 1)
    filled = split.reshape(*shape[:axis], blocks * size, *shape[axis + 1 :])
    return np.ascontiguousarray(filled[(slice(None),) * axis + (slice(shape[axis]),)])


def _blocks(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """Return the channels' axis, their blocks, and the size of a block.

    A layout with channels last has one block.
    """
    if name not in _LAYOUTS:
        raise StageError(
            f"tensors in the format {name} cannot be inputs or outputs here",
            "choose another format under io",
        )
    multiple, is_blocked, spatial = _LAYOUTS[name]
    axis = len(shape) - 1 - spatial
    if axis < 0:
        text = f"a tensor of shape {list(shape)} has no channels for the format {name}"
        raise StageError(text, "choose the format linear")
    blocks = -(-shape[axis] // multiple)
    return (axis, blocks, multiple) if is_blocked else (axis, 1, blocks * multiple)
