"""Checks of inputs against the ranges of an engine whose library checks them in part only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from buildsys.backends.interface import Port
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor


def check_inputs(
    ports: Sequence[Port], dims: Mapping[str, Mapping[str, int]], inputs: Mapping[str, Tensor]
) -> None:
    """Compare ``inputs`` with the names, types and shapes of an engine's ``ports``.

    Raises: StageError: one is missing or does not fit.
    """
    sizes: dict[str, int] = {}
    for port in ports:
        if port.name not in inputs:
            raise StageError(f"the engine needs the input {port.name}", "pass all inputs by name")
        tensor = inputs[port.name]
        if tensor.dtype != port.dtype:
            raise StageError(
                f"the input {port.name} is {tensor.dtype}, and the engine needs {port.dtype}",
                "convert the array first",
            )
        _check_shape(port, tensor.shape, dims, sizes)


def _check_shape(
    port: Port,
    shape: tuple[int, ...],
    dims: Mapping[str, Mapping[str, int]],
    sizes: dict[str, int],
) -> None:
    shown = f"the input {port.name} has the shape {list(shape)}"
    if len(shape) != len(port.shape):
        raise StageError(f"{shown}, and the engine needs {len(port.shape)} dimensions")
    for size, wanted in zip(shape, port.shape, strict=True):
        if isinstance(wanted, str):
            span, known = dims[wanted], sizes.setdefault(wanted, size)
            if not span["min"] <= size <= span["max"]:
                raise StageError(
                    f"{shown}, but the engine was built for {wanted} {span['min']} to"
                    f" {span['max']}",
                    f"widen dims.{wanted} and build it again",
                )
            if size != known:
                text = f"{shown}: {wanted} is {size} there, and {known} in another place"
                raise StageError(text)
        elif size != wanted:
            raise StageError(f"{shown}, and the engine needs {list(port.shape)}")
