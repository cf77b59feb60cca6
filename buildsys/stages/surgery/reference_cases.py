"""Golden cases of a step with outputs from a reference."""

from __future__ import annotations

import inspect
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.manifest.problem import suggest
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import golden_input
from buildsys.models.user_code import load_callable, reraise_as_stage_error, with_article
from buildsys.onnx_graphs.tensors import Array, Case, Tensor, tensor_of
from buildsys.stages.surgery.freed_cases import resized_inputs
from buildsys.stages.surgery.state import Context, GraphState, Step, StepCases

_FLOATS = {"float16", "bfloat16", "float32", "float64"}


def reference_cases(
    state: GraphState, step: Step, context: Context, outputs: Sequence[Mapping[str, Any]]
) -> StepCases:
    """Return the cases with the reference's outputs; ``outputs`` are the new graph's."""
    golden = {}
    for case, before in state.golden.items():
        inputs = _inputs(before, step, case, context)
        arrays = _arrays(step["reference"], inputs, before, case, context)
        shown = step["reference"]["npz"] or step["reference"]["python"]
        golden[case] = Case(
            inputs, {port["name"]: _output(arrays, port, shown, case) for port in outputs}
        )
    expected = {case: tensors.outputs for case, tensors in golden.items()}
    return StepCases(golden, expected, limits=context.tolerance, against="the reference")


def _inputs(before: Case, step: Step, case: str, context: Context) -> dict[str, Tensor]:
    dims = context.dims[case]
    inputs: dict[str, Tensor] = dict(before.inputs)
    if "free_dims" in step:
        for name, axes in step["free_dims"].items():
            for axis, dim in axes.items():
                inputs = resized_inputs(inputs, {name: int(axis)}, dims[dim])
        return inputs
    declared = step.get("inputs")
    if declared is None:
        return inputs
    found = {}
    for name, port in declared.items():
        shape, dtype, data = concrete_shape(port["shape"], dims), port["dtype"], port["data"]
        known = inputs.get(name)
        if known is not None and data is None and (known.dtype, known.shape) == (dtype, shape):
            found[name] = known
        else:
            found[name] = golden_input(
                name, shape, dtype, data, case=case, seed=context.seed, project=context.project
            )
    return found


def _arrays(
    reference: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    before: Case,
    case: str,
    context: Context,
) -> Mapping[str, Array]:
    if reference["npz"] is not None:
        return _from_npz(reference["npz"], case, context)
    name = reference["python"]
    call = load_callable(name, context.project)
    arguments: list[dict[str, Array]] = [{key: tensor.values() for key, tensor in inputs.items()}]
    try:  # the old outputs as well, for references that only modify these
        inspect.signature(call).bind(None, None)
        arguments.append({key: tensor.values() for key, tensor in before.outputs.items()})
    except (TypeError, ValueError):
        pass
    with reraise_as_stage_error(f"the reference {name} failed in case {case}", context.project):
        found = call(*arguments)
    if not isinstance(found, Mapping):
        kind = "nothing" if found is None else with_article(type(found).__name__)
        raise StageError(
            f"the reference {name} returned {kind}; expected a dict of output names to arrays"
        )
    return {str(key): np.asarray(value) for key, value in found.items()}


def _from_npz(shown: str, case: str, context: Context) -> dict[str, Array]:
    """Return a case's arrays: ``CASE.NAME``, or ``NAME`` of a single case."""
    file = context.project / shown
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise StageError(
            f"the reference {shown} cannot be read as an .npz file: {error}"
        ) from error
    prefix = f"{case}."
    own = {n.removeprefix(prefix): array for n, array in arrays.items() if n.startswith(prefix)}
    return own or (arrays if len(context.dims) == 1 else {})


def _output(arrays: Mapping[str, Array], port: Mapping[str, Any], shown: str, case: str) -> Tensor:
    name = port["name"]
    if name not in arrays:
        hint = suggest(name, arrays, what="it has") or f"save an array named {case}.{name}"
        raise StageError(f"the reference {shown} has no output {name} in case {case}", hint)
    found = tensor_of(arrays[name])
    if found.dtype != port["dtype"] and {found.dtype, port["dtype"]} <= _FLOATS:
        return tensor_of(arrays[name], port["dtype"])
    return found
