"""Golden cases of a graph with a fixed dimension turned dynamic.

The network gave outputs for the fixed size only. Items along the freed dimension are assumed to be
independent, like those of a batch: the old graph runs on pieces of its fixed size, and their
outputs are concatenated. Dependent items need a reference in the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, Case, Tensor
from buildsys.stages.common.equivalence import run_cases
from buildsys.stages.surgery.expected_cases import require_golden
from buildsys.stages.surgery.state import Context, GraphState, Step, StepCases

Axes = Mapping[str, int]  # tensor -> its freed axis
HINT = (
    "items along the dimension may depend on each other, or a size is fixed inside the graph;"
    " verify it with a reference"
)
_NEEDS_REFERENCE = "give the outputs by a reference: reference: {python: …}"


def freed_cases(
    state: GraphState, step: Step, context: Context, outputs: Sequence[Mapping[str, Any]]
) -> StepCases:
    """Return cases of all sizes; ``outputs`` are the freed graph's ports."""
    basis = require_golden(state, context)
    dim = _freed_dimension(step)
    axes = {
        name: int(axis)
        for name, named in step["free_dims"].items()
        for axis, freed in named.items()
        if freed == dim
    }
    output_axes = _output_axes(axes, dim, outputs)
    golden, expected = {}, {}
    for case, tensors in state.golden.items():
        size = context.dims[case][dim]
        fixed = max(t.shape[axes[name]] for name, t in tensors.inputs.items() if name in axes)
        pieces = {
            str(number): {
                name: _rolled(tensor, number) if name in axes else tensor
                for name, tensor in tensors.inputs.items()
            }
            for number in range(-(-size // fixed))
        }
        results = run_cases(state.path, pieces, context.runtime)
        joined = {}
        for name, axis in output_axes.items():
            joined[name] = _joined([results[key][name] for key in pieces], axis, size)
        expected[case] = joined
        golden[case] = Case(resized_inputs(tensors.inputs, axes, size), joined)
    return StepCases(golden, expected, basis=basis)


def resized_inputs(tensors: Mapping[str, Tensor], axes: Axes, size: int) -> dict[str, Tensor]:
    """Return inputs with ``size`` items along the freed axis."""
    resized = dict(tensors)
    for name, axis in axes.items():
        if name in tensors:
            count = -(-size // tensors[name].shape[axis])
            parts = [_rolled(tensors[name], number) for number in range(count)]
            resized[name] = _joined(parts, axis, size)
    return resized


def _freed_dimension(step: Step) -> str:
    names = sorted({name for axes in step["free_dims"].values() for name in axes.values()})
    if len(names) > 1:
        raise StageError(
            f"{' and '.join(names)} are freed in one step, so their outputs cannot be computed",
            _NEEDS_REFERENCE,
        )
    if any(len(axes) > 1 for axes in step["free_dims"].values()):
        raise StageError(
            f"{names[0]} is freed on two axes of one tensor, so its outputs cannot be computed",
            _NEEDS_REFERENCE,
        )
    return str(names[0])


def _output_axes(axes: Axes, dim: str, outputs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return output -> freed axis, from the step or inferred shapes."""
    found: dict[str, int] = {}
    for port in outputs:
        name, shape = port["name"], port["shape"] or []
        if name not in axes and dim not in shape:
            raise StageError(
                f"the axis of {dim} in the output {name} is unknown (its shape: {shape})",
                f"add {name}: {{0: {dim}}} to free_dims, with its axis",
            )
        found[name] = axes[name] if name in axes else shape.index(dim)
    return found


def _rolled(tensor: Tensor, number: int) -> Tensor:
    """Return another item of the same values, rolled by ``number`` places."""
    array: Array = tensor.array
    return Tensor(np.roll(array.reshape(-1), number).reshape(array.shape), tensor.dtype)


def _joined(parts: Sequence[Tensor], axis: int, size: int) -> Tensor:
    whole = np.concatenate([part.array for part in parts], axis=axis)
    return Tensor(np.take(whole, range(size), axis=axis), parts[0].dtype)
