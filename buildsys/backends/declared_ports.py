"""Inputs and outputs in an engine's own description, for libraries that do not check them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from buildsys.backends.interface import DeviceTensor, Port, required_input
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, Tensor

_LARGEST = np.iinfo(np.int32).max


def ports_of(entries: Sequence[Mapping[str, Any]]) -> tuple[Port, ...]:
    """Read the inputs or outputs in an engine's description of itself."""
    return tuple(Port(entry["name"], entry["dtype"], tuple(entry["shape"])) for entry in entries)


def check_inputs(
    ports: Sequence[Port],
    dims: Mapping[str, Mapping[str, int]],
    inputs: Mapping[str, Tensor | DeviceTensor],
) -> None:
    """Compare ``inputs`` with the names, types and shapes of an engine's ``ports``.

    Raises: StageError: one is missing or does not fit.
    """
    sizes: dict[str, int] = {}
    for port in ports:
        shape = required_input(port, inputs).shape
        fits = len(shape) == len(port.shape)
        for size, expected in zip(shape, port.shape, strict=False):
            if isinstance(expected, str):
                span = dims[expected]
                fits &= span["min"] <= size <= span["max"]
                fits &= sizes.setdefault(expected, size) == size
            else:
                fits &= size == expected
        if not fits:
            ranges = [f", {name} {span['min']} to {span['max']}" for name, span in dims.items()]
            text = f"the input {port.name} has the shape {list(shape)}, but the engine was built"
            hint = "pass another shape, or widen dims and build it again"
            raise StageError(f"{text} for {list(port.shape)}{''.join(ranges)}", hint)


def int32_array(name: str, array: Array, library: str) -> Array:
    """Return 64-bit integers in 32 bits. Raises: StageError: one does not fit."""
    if array.size and not -_LARGEST <= array.min() <= array.max() <= _LARGEST:
        text = f"the input {name} has values beyond 32 bits"
        raise StageError(text, f"{library} has no 64-bit integers: pass smaller values")
    return array.astype(np.int32)
