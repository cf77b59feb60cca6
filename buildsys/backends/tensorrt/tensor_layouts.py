"""Memory layouts of tensors: how an engine's inputs and outputs lie where ``io`` asks for another than rows first.

Source: TensorRT developer guide, "I/O Formats": channels in blocks (CHW4: [N, C/4, H, W, 4]) or last (HWC8:
[N, H, W, C up to a multiple of 8]), filled up with zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

LINEAR = "linear"


class _Layout(NamedTuple):
    multiple: int  # of the channels
    is_blocked: bool  # blocks of channels stay where channels were; else channels are last
    spatial: int  # dimensions behind the channels


_LAYOUTS = {
    "chw2": _Layout(2, True, 2), "chw4": _Layout(4, True, 2), "chw16": _Layout(16, True, 2),
    "chw32": _Layout(32, True, 2), "cdhw32": _Layout(32, True, 3), "hwc": _Layout(1, False, 2),
    "hwc8": _Layout(8, False, 2), "hwc16": _Layout(16, False, 2), "dhwc": _Layout(1, False, 3),
    "dhwc8": _Layout(8, False, 3),
}  # fmt: skip


def packed(array: Array, layout: str) -> Array:
    """Return an array as it lies in memory in a layout."""
    if layout == LINEAR:
        return array
    chosen = _chosen(layout, array.shape)
    axis = array.ndim - 1 - chosen.spatial
    padding = [
        (0, -array.shape[axis] % chosen.multiple if index == axis else 0)
        for index in range(array.ndim)
    ]
    filled = np.pad(array, padding) if any(after for _, after in padding) else array
    if not chosen.is_blocked:
        return np.ascontiguousarray(np.moveaxis(filled, axis, -1))
    blocks = filled.shape[axis] // chosen.multiple
    split = filled.reshape(*filled.shape[:axis], blocks, chosen.multiple, *filled.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def packed_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of ``packed`` for an array of a shape."""
    if layout == LINEAR:
        return shape
    chosen = _chosen(layout, shape)
    axis = len(shape) - 1 - chosen.spatial
    blocks = -(-shape[axis] // chosen.multiple)
    if chosen.is_blocked:
        return (*shape[:axis], blocks, *shape[axis + 1 :], chosen.multiple)
    return (*shape[:axis], *shape[axis + 1 :], blocks * chosen.multiple)


def unpacked(memory: Array, layout: str, shape: tuple[int, ...]) -> Array:
    """Return the array of a shape that lies in memory in a layout."""
    if layout == LINEAR:
        return memory
    chosen = _chosen(layout, shape)
    axis = len(shape) - 1 - chosen.spatial
    if chosen.is_blocked:
        split = np.moveaxis(memory, -1, axis + 1)
        filled = split.reshape(*split.shape[:axis], -1, *split.shape[axis + 2 :])
    else:
        filled = np.moveaxis(memory, -1, axis)
    cut = (*(slice(None) for _ in range(axis)), slice(0, shape[axis]))
    return np.ascontiguousarray(filled[cut])


def _chosen(layout: str, shape: tuple[int, ...]) -> _Layout:
    found = _LAYOUTS.get(layout)
    if found is None:
        raise StageError(f"tensors in the format {layout} cannot be passed in or out here")
    if len(shape) <= found.spatial:
        raise StageError(
            f"a tensor of shape {list(shape)} has no channels, which the format {layout} arranges"
        )
    return found
