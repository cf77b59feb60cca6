"""One step of surgery: edit, write, check and compare a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from onnx import ModelProto

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.surgery_interface import Interface, interface_after, kind_of
from buildsys.onnx_graphs.onnx_file import (
    interface,
    interface_changes,
    load_model,
    operator_counts,
    ports,
)
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.report.results.header import CheckFailure
from buildsys.report.results.surgery import SurgeryStep
from buildsys.stages.common.equivalence import (
    compare_cases,
    limits_of,
    random_operators,
    refuse_random_graph,
    run_cases,
)
from buildsys.stages.surgery import (
    cut,
    edit_nodes,
    edit_ports,
    expected_cases,
    freed_cases,
    hooks,
    reference_cases,
)
from buildsys.stages.surgery.state import Context, GraphState, Outputs, Step, StepCases
from buildsys.stages.surgery.write_graph import write_checked

_INTERFACE_KEEPING = ("function", "replace", "remove")


@dataclass(frozen=True)
class StepResult:
    """A completed step: the new graph and its comparison."""

    figures: SurgeryStep
    state: GraphState
    expected: Mapping[str, Outputs]
    compared: Mapping[str, Mapping[str, Comparison]]
    warnings: tuple[str, ...]
    hint: str  # for a difference

    def failures(self) -> Iterator[tuple[str, str, Comparison]]:
        """Yield case, output and comparison of all differences."""
        for case, outputs in self.compared.items():
            for name, found in outputs.items():
                if found.problem:
                    yield case, name, found


def describe_step(step: Step) -> str:
    """Return e.g. ``rename x → image``."""
    kind = kind_of(step)
    value = step[kind]
    if kind == "cut":
        sides = {side: value[side] for side in ("inputs", "outputs") if value[side] is not None}
        return "cut " + ", ".join(f"{side} {', '.join(names)}" for side, names in sides.items())
    if kind == "replace":
        return f"replace {value['op']} by {value['function']}"
    if kind == "remove":
        return f"remove {', '.join(value)}" + (f" named {step['name']}" if step["name"] else "")
    if kind == "free_dims":
        axes = [f"{name} {axis}: {dim}" for name, a in value.items() for axis, dim in a.items()]
        return f"free_dims {', '.join(axes)}"
    if kind == "function":
        return f"function {value}"
    return f"{kind} " + ", ".join(f"{old} → {new}" for old, new in value.items())


def apply_step(step: Step, number: int, state: GraphState, context: Context) -> StepResult:
    """Apply one step; the result holds different outputs, if any.

    Raises: StageError: it does not fit the graph. CheckFailed: the new graph is invalid or random,
        or has another interface.
    """
    before = load_model(state.path)
    counts, limits, old_interface = operator_counts(before), limits_of(before), interface(before)
    cut_cases = expected_cases.cut_cases(state, step, context) if "cut" in step else None
    path = context.scratch / f"step{number}" / "model.onnx"
    outputs = load_model(state.path, external_data=False).graph.output
    inputs = interface_after(Interface(dict(state.inputs), None), [step]).inputs
    if cut_cases:
        shapes = {name: tensor["shape"] for name, tensor in inputs.items()}
        case = next(iter(cut_cases.golden.values()))
        tensors = {**case.inputs, **case.outputs}
        kinds = {name: (tensor.dtype, len(tensor.shape)) for name, tensor in tensors.items()}
        edited = cut.cut(before, step, shapes, kinds)
    else:
        edited = _edit(before, step, state, context)
    after = write_checked(edited, path, outputs)
    _check_interface(step, old_interface, interface(after))
    cases = cut_cases or _step_cases(step, state, context, after)
    feeds = {case: tensors.inputs for case, tensors in cases.golden.items()}
    actual = run_cases(path, feeds, context.runtime)
    compared = compare_cases(actual, cases.expected, cases.limits or limits)
    now, random = operator_counts(after), random_operators(counts)
    hint = ""
    if "free_dims" in step and step.get("reference") is None:
        hint = freed_cases.HINT
    elif step.get("changes") == "nothing":
        hint = "if this is intended, set changes: numbers and a reference"
    figures = SurgeryStep(
        step=describe_step(step),
        removed={op: n - now.get(op, 0) for op, n in counts.items() if n > now.get(op, 0)},
        added={op: n - counts.get(op, 0) for op, n in now.items() if n > counts.get(op, 0)},
        nodes=sum(now.values()),
        against=cases.against,
        basis=cases.basis,
        cases={
            case: {name: comparison.figures() for name, comparison in comparisons.items()}
            for case, comparisons in compared.items()
        },
    )
    result = StepResult(
        figures,
        GraphState(path, inputs, cases.golden, actual),
        cases.expected,
        compared,
        cases.warnings,
        hint,
    )
    differences = list(result.failures())
    if random or differences:
        first = next(iter(state.golden.values())).inputs
        refuse_random_graph(
            state.path, "the graph before it", first, limits, random, context.runtime
        )
    figures["failures"] = [
        cast(CheckFailure, {"case": case, "output": name, **comparison.failure()})
        for case, name, comparison in differences
    ]
    return result


def _edit(model: ModelProto, step: Step, state: GraphState, context: Context) -> ModelProto:
    kind = kind_of(step)
    if kind == "function":
        return hooks.call_hook(model, step, context.project)
    if kind == "fix_dims":
        return edit_ports.fix_dims(model, step, state.inputs)
    if kind == "replace":
        return edit_nodes.replace(model, step, context.project)
    edits = {
        "rename": edit_ports.rename,
        "free_dims": edit_ports.free_dims,
        "cast": edit_ports.cast,
        "remove": edit_nodes.remove,
    }
    return edits[kind](model, step)


def _step_cases(step: Step, state: GraphState, context: Context, after: ModelProto) -> StepCases:
    outputs = ports(after)[1]
    if step.get("reference") is not None:
        return reference_cases.reference_cases(state, step, context, outputs)
    kind = kind_of(step)
    if kind == "free_dims":
        return freed_cases.freed_cases(state, step, context, outputs)
    if kind == "function":
        return expected_cases.declared_cases(state, step)
    if kind == "rename":
        return expected_cases.renamed_cases(state, step)
    if kind == "cast":
        return expected_cases.cast_cases(state, step, context)
    return StepCases(state.golden, state.computed)


def _check_interface(step: Step, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise CheckFailed for undeclared changes of inputs or outputs."""
    if kind_of(step) not in _INTERFACE_KEEPING:
        return
    expected = {side: _declared_ports(step, side, before, after) for side in ("input", "output")}
    same_opset: dict[str, Any] = {"opset": {}}  # may change: callers of the graph do not see it
    changed = next(interface_changes({**expected, **same_opset}, {**after, **same_opset}), None)
    if changed:
        hint = "declare new inputs and outputs in the step" if "function" in step else ""
        raise CheckFailed(f"it changed the interface of the graph: {changed}", hint)
    new = [
        port["name"]
        for side, declared in expected.items()
        for port in declared
        if port["name"] not in {known["name"] for known in before[side]}
    ]
    if new and step["changes"] == "nothing":
        raise StageError(
            f"the values of the new {new[0]} are unknown",
            "set changes: numbers, with a reference for the outputs",
        )


def _declared_ports(
    step: Step, side: str, before: dict[str, Any], after: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the declared ports of one side, completed from the new graph."""
    declared = step.get(f"{side}s")
    if declared is None:
        unchanged: list[dict[str, Any]] = before[side]
        return unchanged
    found = {port["name"]: port for port in after[side]}
    result = []
    for name, tensor in declared.items():
        port, shape = found.get(name, {}), tensor["shape"]
        shape = port.get("shape") if shape is None else shape
        result.append({"name": name, "dtype": tensor["dtype"] or port.get("dtype"), "shape": shape})
    return result
