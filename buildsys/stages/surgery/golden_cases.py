"""What becomes of golden cases in steps that leave the numbers as they are: renamed, cast, cut, freed.

Golden outputs come from the network. Where a step needs tensors that the network does not give, they are computed by
the graph before the step in ONNX Runtime, after a check that this graph gives the golden outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.manifest.value_ranges import INTEGER_RANGES
from buildsys.onnx_graphs.onnx_file import load_model, save_model
from buildsys.onnx_graphs.tensors import Array, Case, Tensor, tensor_of
from buildsys.stages.common.equivalence import compare_cases, run_cases
from buildsys.stages.surgery.cut import cut_tensors, with_outputs
from buildsys.stages.surgery.state import Carried, Outputs, Point, Setting, Step


def keep(point: Point, step: Step, setting: Setting) -> Carried:
    """Return the cases as they are."""
    del step, setting
    return Carried(point.golden, point.computed)


def keep_named(point: Point, step: Step, setting: Setting) -> Carried:
    """Return the cases without the inputs and outputs that a hook declares no more."""
    del setting
    inputs, outputs = step.get("inputs"), step.get("outputs")
    golden = {
        case: Case(_only(tensors.inputs, inputs), _only(tensors.outputs, outputs))
        for case, tensors in point.golden.items()
    }
    return Carried(golden, {case: _only(found, outputs) for case, found in point.computed.items()})


def rename(point: Point, step: Step, setting: Setting) -> Carried:
    """Return the cases under the new names."""
    del setting
    names = step["rename"]
    golden = {
        case: Case(_renamed(tensors.inputs, names), _renamed(tensors.outputs, names))
        for case, tensors in point.golden.items()
    }
    return Carried(
        golden, {case: _renamed(outputs, names) for case, outputs in point.computed.items()}
    )


def cast(point: Point, step: Step, setting: Setting) -> Carried:
    """Return the cases with inputs of the new types; where values do not survive, the outputs are computed again."""
    types: Mapping[str, str] = step["cast"]
    inputs: dict[str, dict[str, Tensor]] = {}
    back: dict[str, dict[str, Tensor]] = {}
    lossy: dict[str, str] = {}
    for case, tensors in point.golden.items():
        inputs[case], back[case] = dict(tensors.inputs), dict(tensors.inputs)
        for name, dtype in types.items():
            old = tensors.inputs[name]
            inputs[case][name] = _converted(old, dtype)
            back[case][name] = tensor_of(inputs[case][name].values(), old.dtype)
            if not np.array_equal(back[case][name].values(), old.values()):
                lossy[name] = dtype
    if not lossy:
        golden = {
            case: Case(inputs[case], tensors.outputs) for case, tensors in point.golden.items()
        }
        return Carried(golden, point.computed)
    basis = require_golden(point, setting)
    expected = run_cases(point.path, back, setting.runtime)
    changed = ", ".join(f"{name} are no values of {dtype}" for name, dtype in lossy.items())
    warning = f"the golden inputs of {changed}: they are rounded, and the outputs computed again by the graph before"
    return Carried(
        {case: Case(inputs[case], expected[case]) for case in inputs},
        expected,
        warnings=(warning,),
        basis=basis,
    )


def cut(point: Point, step: Step, setting: Setting) -> Carried:
    """Return the cases of the part: what the network gives as far as it does, else what the graph before computes."""
    model = load_model(point.path)
    inputs, outputs = cut_tensors(model, step)
    known = {name for case in point.golden.values() for name in (*case.inputs, *case.outputs)}
    whole, basis = dict(point.computed), None
    if not known.issuperset([*inputs, *outputs]):
        basis = require_golden(point, setting)
        probe = setting.scratch / "probe" / "model.onnx"
        probe.parent.mkdir(exist_ok=True)
        made = [name for name in (*inputs, *outputs) if name not in known]
        save_model(with_outputs(model, made), probe)
        feeds = {case: tensors.inputs for case, tensors in point.golden.items()}
        whole = dict(run_cases(probe, feeds, setting.runtime))
    golden, expected = {}, {}
    for case, tensors in point.golden.items():
        found = {**whole[case], **tensors.inputs}
        given = {name: found[name] for name in inputs}
        _check_cut_shapes(given, step, setting.dims[case], case)
        expected[case] = {name: found[name] for name in outputs}
        golden[case] = Case(
            given, {name: tensors.outputs.get(name, found[name]) for name in outputs}
        )
    return Carried(golden, expected, basis=basis)


def cut_kinds(carried: Carried) -> dict[str, tuple[str, int]]:
    """Return the dtype and the number of dimensions of every tensor at the cut."""
    case = next(iter(carried.golden.values()))
    return {
        name: (tensor.dtype, len(tensor.shape))
        for name, tensor in {**case.inputs, **case.outputs}.items()
    }


def require_golden(point: Point, setting: Setting) -> float:
    """Check that the graph computes the golden outputs, before others are taken from it; return the worst error.

    Raises: CheckFailed: it does not.
    """
    golden = {case: tensors.outputs for case, tensors in point.golden.items()}
    compared = compare_cases(point.computed, golden, setting.tolerance)
    for case, outputs in compared.items():
        for name, found in outputs.items():
            if found.problem:
                raise CheckFailed(
                    f"the graph before this step does not give the golden output {name} in case {case}, so that none"
                    f" can be computed by it: {found.sentence('it', 'the network')}",
                    "see the limits in validate",
                )
    return max(found.relative for outputs in compared.values() for found in outputs.values())


def _check_cut_shapes(inputs: Outputs, step: Step, dims: Mapping[str, int], case: str) -> None:
    for name, declared in (step["cut"]["inputs"] or {}).items():
        tensor = inputs[name]
        if declared["dtype"] not in (None, tensor.dtype):
            raise StageError(
                f"{name} is {tensor.dtype} in the graph, declared is {declared['dtype']}"
            )
        if declared["shape"] is not None:
            wanted = concrete_shape(declared["shape"], dims)
            if wanted != tensor.shape:
                raise StageError(
                    f"{name} has the shape {list(tensor.shape)} in case {case}, declared is {declared['shape']}"
                    f" ({list(wanted)})"
                )


def _converted(tensor: Tensor, dtype: str) -> Tensor:
    values = tensor.values()
    if dtype != "bool" and np.dtype(values.dtype).kind == "f" and "int" in dtype:
        low, high = _bounds(dtype)
        values = np.clip(np.rint(values.astype(np.float64)), low, high)
    elif "int" in dtype and values.dtype.kind in "iu":
        values = np.clip(values, *_bounds(dtype))
    return tensor_of(values, dtype)


def _bounds(dtype: str) -> tuple[Any, Any]:
    return INTEGER_RANGES[dtype]


def _only(tensors: Outputs, names: Any) -> dict[str, Tensor]:
    return (
        dict(tensors)
        if names is None
        else {name: tensors[name] for name in names if name in tensors}
    )


def _renamed(tensors: Outputs, names: Mapping[str, str]) -> dict[str, Tensor]:
    return {names.get(name, name): tensor for name, tensor in tensors.items()}


def rolled(array: Array, number: int) -> Array:
    """Return another item made of the same values: rolled by one more place for each number."""
    return np.roll(array.reshape(-1), number).reshape(array.shape)
