"""Golden cases after steps with unchanged numbers: renamed, cast or cut.

Golden outputs come from the network. Tensors that the network does not return are computed by the
old graph in ONNX Runtime, after a check that this graph gives the golden outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.manifest.value_ranges import INTEGER_RANGES
from buildsys.onnx_graphs.onnx_file import load_model, save_model
from buildsys.onnx_graphs.tensors import Case, Tensor, tensor_of
from buildsys.stages.common.equivalence import compare_cases, run_cases
from buildsys.stages.surgery.cut import add_outputs, cut_tensors
from buildsys.stages.surgery.state import Context, GraphState, Outputs, Step, StepCases


def declared_cases(state: GraphState, step: Step) -> StepCases:
    """Return the cases without ports removed by a hook."""
    inputs, outputs = step.get("inputs"), step.get("outputs")

    def select(tensors: Outputs, names: Any) -> dict[str, Tensor]:
        chosen = tensors if names is None else [name for name in names if name in tensors]
        return {name: tensors[name] for name in chosen}

    golden = {
        case: Case(select(tensors.inputs, inputs), select(tensors.outputs, outputs))
        for case, tensors in state.golden.items()
    }
    expected = {case: select(found, outputs) for case, found in state.computed.items()}
    return StepCases(golden, expected)


def renamed_cases(state: GraphState, step: Step) -> StepCases:
    """Return the cases under the new names."""

    def rename(tensors: Outputs) -> dict[str, Tensor]:
        return {step["rename"].get(name, name): tensor for name, tensor in tensors.items()}

    golden = {
        case: Case(rename(tensors.inputs), rename(tensors.outputs))
        for case, tensors in state.golden.items()
    }
    return StepCases(golden, {case: rename(found) for case, found in state.computed.items()})


def cast_cases(state: GraphState, step: Step, context: Context) -> StepCases:
    """Return the cases with inputs of the new types.

    If values change in the conversion, the outputs are computed again.
    """
    types: Mapping[str, str] = step["cast"]
    inputs: dict[str, dict[str, Tensor]] = {}
    restored: dict[str, dict[str, Tensor]] = {}  # in the old type again
    lossy: dict[str, str] = {}
    for case, tensors in state.golden.items():
        inputs[case], restored[case] = dict(tensors.inputs), dict(tensors.inputs)
        for name, dtype in types.items():
            old = tensors.inputs[name]
            inputs[case][name] = _convert(old, dtype)
            restored[case][name] = tensor_of(inputs[case][name].values(), old.dtype)
            if not np.array_equal(restored[case][name].values(), old.values()):
                lossy[name] = dtype
    if not lossy:
        golden = {
            case: Case(inputs[case], tensors.outputs) for case, tensors in state.golden.items()
        }
        return StepCases(golden, state.computed)
    basis = require_golden(state, context)
    expected = run_cases(state.path, restored, context.runtime)
    changed = ", ".join(f"{name} are not exact in {dtype}" for name, dtype in lossy.items())
    warning = (
        f"the golden inputs of {changed}: they are rounded, and the graph before the step computes"
        " the outputs"
    )
    golden = {case: Case(inputs[case], expected[case]) for case in inputs}
    return StepCases(golden, expected, warnings=(warning,), basis=basis)


def cut_cases(state: GraphState, step: Step, context: Context) -> StepCases:
    """Return the cases of a cut, if necessary from the old graph."""
    model = load_model(state.path)
    inputs, outputs = cut_tensors(model, step)
    known = {name for case in state.golden.values() for name in (*case.inputs, *case.outputs)}
    computed, basis = dict(state.computed), None
    unknown = [name for name in (*inputs, *outputs) if name not in known]
    if unknown:
        basis = require_golden(state, context)
        probe = context.scratch / "probe" / "model.onnx"
        probe.parent.mkdir(exist_ok=True)
        save_model(add_outputs(model, unknown), probe)
        feeds = {case: tensors.inputs for case, tensors in state.golden.items()}
        computed = dict(run_cases(probe, feeds, context.runtime))
    golden, expected = {}, {}
    for case, tensors in state.golden.items():
        found = {**computed[case], **tensors.inputs}
        given = {name: found[name] for name in inputs}
        _check_cut_inputs(given, step, context.dims[case], case)
        expected[case] = {name: found[name] for name in outputs}
        golden[case] = Case(
            given, {name: tensors.outputs.get(name, found[name]) for name in outputs}
        )
    return StepCases(golden, expected, basis=basis)


def require_golden(state: GraphState, context: Context) -> float:
    """Check the graph's outputs before it computes others; return its worst error.

    Raises: CheckFailed: they differ from the golden ones.
    """
    golden = {case: tensors.outputs for case, tensors in state.golden.items()}
    compared = compare_cases(state.computed, golden, context.tolerance)
    for case, outputs in compared.items():
        for name, found in outputs.items():
            if found.problem:
                raise CheckFailed(
                    "the graph before this step cannot compute new golden outputs: its output"
                    f" {name} differs in case {case}: {found.sentence('it', 'the network')}",
                    "see the limits in validate",
                )
    return max(found.relative for outputs in compared.values() for found in outputs.values())


def _check_cut_inputs(inputs: Outputs, step: Step, dims: Mapping[str, int], case: str) -> None:
    for name, declared in (step["cut"]["inputs"] or {}).items():
        tensor = inputs[name]
        if declared["dtype"] not in (None, tensor.dtype):
            raise StageError(
                f"{name} is {tensor.dtype} in the graph, the step declares {declared['dtype']}"
            )
        if declared["shape"] is None:
            continue
        expected = concrete_shape(declared["shape"], dims)
        if expected != tensor.shape:
            raise StageError(
                f"{name} has the shape {list(tensor.shape)} in case {case}, the step declares"
                f" {declared['shape']} ({list(expected)})"
            )


def _convert(tensor: Tensor, dtype: str) -> Tensor:
    values = tensor.values()
    if "int" in dtype and values.dtype.kind in "fiu":
        if values.dtype.kind == "f":
            values = np.rint(values.astype(np.float64))
        values = np.clip(values, *INTEGER_RANGES[dtype])
    return tensor_of(values, dtype)
