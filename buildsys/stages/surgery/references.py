"""The golden cases of a step that changes the numbers: its outputs come from a reference of the project."""

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
from buildsys.stages.surgery.free_dims import joined_inputs
from buildsys.stages.surgery.state import Carried, Point, Setting, Step

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def refer(
    point: Point, step: Step, setting: Setting, outputs: Sequence[Mapping[str, Any]]
) -> Carried:
    """Return the cases with the outputs that the step's reference gives; ``outputs`` are those of the new graph."""
    golden = {}
    for case, before in point.golden.items():
        inputs = _inputs(before, step, case, setting)
        arrays = _arrays(step["reference"], inputs, before, case, setting)
        golden[case] = Case(
            inputs,
            {port["name"]: _taken(arrays, port, step["reference"], case) for port in outputs},
        )
    expected = {case: tensors.outputs for case, tensors in golden.items()}
    return Carried(golden, expected, limits=setting.tolerance, against="the reference")


def _inputs(before: Case, step: Step, case: str, setting: Setting) -> dict[str, Tensor]:
    if "free_dims" in step:
        inputs: dict[str, Tensor] = dict(before.inputs)
        for name, axes in step["free_dims"].items():
            for axis, dim in axes.items():
                inputs = joined_inputs(inputs, {name: int(axis)}, setting.dims[case][dim])
        return inputs
    declared = step.get("inputs")
    if declared is None:
        return dict(before.inputs)
    return {name: _input(name, tensor, before, case, setting) for name, tensor in declared.items()}


def _input(
    name: str, declared: Mapping[str, Any], before: Case, case: str, setting: Setting
) -> Tensor:
    shape, known = concrete_shape(declared["shape"], setting.dims[case]), before.inputs.get(name)
    if (
        known is not None
        and declared["data"] is None
        and (known.dtype, known.shape) == (declared["dtype"], shape)
    ):
        return known
    return golden_input(
        name,
        shape,
        declared["dtype"],
        declared["data"],
        case=case,
        seed=setting.seed,
        project=setting.project,
    )


def _arrays(
    reference: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    before: Case,
    case: str,
    setting: Setting,
) -> Mapping[str, Array]:
    if reference["npz"] is not None:
        return _from_npz(reference["npz"], case, len(setting.dims), setting)
    name = reference["python"]
    call = load_callable(name, setting.project)
    arguments: list[dict[str, Array]] = [{key: tensor.values() for key, tensor in inputs.items()}]
    if _takes_two(call):  # the outputs from before, for those that only change these
        arguments.append({key: tensor.values() for key, tensor in before.outputs.items()})
    with reraise_as_stage_error(f"the reference {name} failed in case {case}", setting.project):
        found = call(*arguments)
    if not isinstance(found, Mapping):
        kind = "nothing" if found is None else with_article(type(found).__name__)
        raise StageError(
            f"the reference {name} returned {kind}; a map of output names to arrays is wanted"
        )
    return {str(key): np.asarray(value) for key, value in found.items()}


def _takes_two(call: Any) -> bool:
    try:
        inspect.signature(call).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _from_npz(shown: str, case: str, cases: int, setting: Setting) -> dict[str, Array]:
    file = setting.project / shown
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise StageError(
            f"the reference {shown} cannot be read as an .npz file: {error}"
        ) from error
    own = {
        name.removeprefix(f"{case}."): array
        for name, array in arrays.items()
        if name.startswith(f"{case}.")
    }
    return own or (arrays if cases == 1 else {})


def _taken(
    arrays: Mapping[str, Array], port: Mapping[str, Any], reference: Mapping[str, Any], case: str
) -> Tensor:
    shown, name = reference["npz"] or reference["python"], port["name"]
    if name not in arrays:
        has = suggest(name, arrays, what="it has") or f"an array is named {case}.{name}"
        raise StageError(f"the reference {shown} has no output {name} in case {case}", has)
    found = tensor_of(arrays[name])
    if found.dtype != port["dtype"] and {found.dtype, port["dtype"]} <= set(_FLOATS):
        return tensor_of(arrays[name], port["dtype"])
    return found
