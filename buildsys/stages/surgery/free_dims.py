"""The golden cases of a graph whose fixed dimension became dynamic.

The network was asked for the fixed size alone. Items along the freed dimension are taken for independent, as those of
a batch are: the graph before is run on pieces of its own size, and their outputs are joined. Where they are not
independent, the step has a reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Case, Tensor
from buildsys.stages.common.equivalence import run_cases
from buildsys.stages.surgery.golden_cases import require_golden, rolled
from buildsys.stages.surgery.state import Carried, Point, Setting, Step

Axes = Mapping[str, int]  # tensor -> its freed axis
_NEEDS_REFERENCE = "then only a reference can tell the outputs: reference: {python: …}"
_HINT = "items along the dimension may depend on each other, or a size is fixed inside the graph; a reference decides"


def free(
    point: Point, step: Step, setting: Setting, outputs: Sequence[Mapping[str, Any]]
) -> Carried:
    """Return the cases of all sizes; ``outputs`` are those of the freed graph with their shapes."""
    basis = require_golden(point, setting)
    dim = freed_name(step)
    inputs, results = _axes(step, dim), _output_axes(step, dim, outputs)
    golden, expected = {}, {}
    for case, tensors in point.golden.items():
        size = setting.dims[case][dim]
        pieces = _pieces(tensors.inputs, inputs, size)
        done = run_cases(point.path, pieces, setting.runtime)
        joined = _joined([done[key] for key in pieces], results, size)
        expected[case] = joined
        golden[case] = Case(joined_inputs(tensors.inputs, inputs, size), joined)
    return Carried(golden, expected, basis=basis)


def freed_name(step: Step) -> str:
    """Return the one dimension that a step frees. Raises: StageError: there are several."""
    names = sorted({name for axes in step["free_dims"].values() for name in axes.values()})
    if len(names) > 1:
        raise StageError(f"{' and '.join(names)} are freed at once", _NEEDS_REFERENCE)
    if any(len(axes) > 1 for axes in step["free_dims"].values()):
        raise StageError(f"{names[0]} is freed on two axes of one tensor", _NEEDS_REFERENCE)
    return str(names[0])


def joined_inputs(tensors: Mapping[str, Tensor], axes: Axes, size: int) -> dict[str, Tensor]:
    """Return inputs whose freed axis has ``size`` items: those there are, and others made of the same values."""
    joined = dict(tensors)
    for name, axis in axes.items():
        if name in tensors:
            array = tensors[name].array
            count = -(-size // array.shape[axis])
            whole = np.concatenate([rolled(array, number) for number in range(count)], axis=axis)
            joined[name] = Tensor(np.take(whole, range(size), axis=axis), tensors[name].dtype)
    return joined


def _pieces(tensors: Mapping[str, Tensor], axes: Axes, size: int) -> dict[str, dict[str, Tensor]]:
    """Return inputs of the fixed size that together hold ``size`` items."""
    fixed = max(tensors[name].shape[axis] for name, axis in axes.items() if name in tensors)
    return {
        str(number): {
            name: Tensor(rolled(tensor.array, number), tensor.dtype) if name in axes else tensor
            for name, tensor in tensors.items()
        }
        for number in range(-(-size // fixed))
    }


def _joined(
    pieces: Sequence[Mapping[str, Tensor]], axes: Mapping[str, int | None], size: int
) -> dict[str, Tensor]:
    joined = {}
    for name, axis in axes.items():
        tensors = [piece[name] for piece in pieces]
        if axis is None:
            joined[name] = tensors[0]
        else:
            whole = np.concatenate([tensor.array for tensor in tensors], axis=axis)
            joined[name] = Tensor(np.take(whole, range(size), axis=axis), tensors[0].dtype)
    return joined


def _axes(step: Step, dim: str) -> dict[str, int]:
    return {
        name: int(axis)
        for name, axes in step["free_dims"].items()
        for axis, named in axes.items()
        if named == dim
    }


def _output_axes(
    step: Step, dim: str, outputs: Sequence[Mapping[str, Any]]
) -> dict[str, int | None]:
    """Return the freed axis of each output: as the step says, else as shape inference does."""
    said, axes = _axes(step, dim), {}
    for port in outputs:
        name, shape = port["name"], port["shape"] or []
        if name not in said and dim not in shape:
            raise StageError(
                f"it cannot be told which axis of the output {name} is {dim} (its shape: {shape})",
                f"add {name}: {{0: {dim}}} to free_dims, with its axis",
            )
        axes[name] = said[name] if name in said else shape.index(dim)
    return dict(axes)


def hint(step: Step) -> str:
    """Return what to do where the freed graph computes something else."""
    return _HINT if step.get("reference") is None else ""
