"""One step of surgery: edit, write, check and compare a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from onnx import ModelProto, ValueInfoProto, shape_inference

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.surgery_interface import Interface, interface_after, kind_of
from buildsys.onnx_graphs.onnx_file import (
    all_nodes,
    check_file,
    interface,
    interface_changes,
    load_model,
    operator_counts,
    ports,
    save_model,
)
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import Case
from buildsys.report.results.header import CheckFailure
from buildsys.report.results.surgery import SurgeryStep
from buildsys.stages.common.equivalence import (
    compare_cases,
    limits_of,
    random_operators,
    refuse_random_graph,
    run_cases,
)
from buildsys.stages.surgery import edit_nodes, edit_ports, golden_cases
from buildsys.stages.surgery.golden_cases import GraphState, Step, StepCases, Tensors
from buildsys.stages.surgery.other_sizes import compare_other_sizes
from buildsys.stages.surgery.tensor_names import replace_messages
from buildsys.workers.job import Job

_INTERFACE_KEEPING = ("function", "replace")
_ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


@dataclass(frozen=True)
class StepResult:
    """A completed step: the new graph and its differences."""

    figures: SurgeryStep
    state: GraphState
    expected: Mapping[str, Tensors]
    differences: Sequence[tuple[str, str, Comparison]]  # case, output
    warnings: tuple[str, ...]
    hint: str  # for a difference


def describe_step(step: Step) -> str:
    """Return e.g. ``rename x → image``."""
    kind = kind_of(step)
    value = step[kind]
    if kind == "cut":
        sides = {side: value[side] for side in ("inputs", "outputs") if value[side] is not None}
        return "cut " + ", ".join(f"{side} {', '.join(names)}" for side, names in sides.items())
    if kind == "replace":
        return f"replace {value['op']} by {value['function']}"
    if kind == "function":
        return f"function {value}"
    return f"{kind} " + ", ".join(f"{old} → {new}" for old, new in value.items())


def apply_step(job: Job, step: Step, state: GraphState, path: Path) -> StepResult:
    """Apply one step and write its graph to ``path``.

    The result holds its differences, if any.

    Raises: StageError: it does not fit the graph. CheckFailed: the new graph is invalid or random,
        or has another interface.
    """
    before = load_model(state.path)
    counts, limits, old_interface = operator_counts(before), limits_of(before), interface(before)
    outputs = load_model(state.path, external_data=False).graph.output
    inputs = interface_after(Interface(dict(state.inputs), None), [step]).inputs
    cut_cases = golden_cases.cut_cases(job, state, step) if "cut" in step else None
    if cut_cases:
        shapes = {name: tensor["shape"] for name, tensor in inputs.items()}
        case = next(iter(cut_cases.golden.values()))
        tensors = {**case.inputs, **case.outputs}
        kinds = {name: (tensor.dtype, len(tensor.shape)) for name, tensor in tensors.items()}
        edited = edit_ports.cut(before, step, shapes, kinds)
    else:
        edits = {
            "function": lambda: edit_nodes.call_hook(before, step, job.project),
            "replace": lambda: edit_nodes.replace(before, step, job.project),
            "rename": lambda: edit_ports.rename(before, step),
            "fix_dims": lambda: edit_ports.fix_dims(before, step, state.inputs),
            "cast": lambda: edit_ports.cast(before, step),
        }
        edited = edits[kind_of(step)]()
    after = _write_checked(edited, path, outputs)
    _check_interface(step, old_interface, interface(after))
    cases = cut_cases or _step_cases(job, step, state, after)
    feeds = {case: tensors.inputs for case, tensors in cases.golden.items()}
    actual = run_cases(job, path, feeds)
    compared = compare_cases(actual, cases.expected, cases.limits or limits, feeds)
    differences = [
        (case, name, found)
        for case, comparisons in compared.items()
        for name, found in comparisons.items()
        if found.problem
    ]
    now, random = operator_counts(after), random_operators(counts)
    keeps_ports = step.get("inputs") is None and step.get("outputs") is None
    if step.get("changes") == "nothing" and keeps_ports and not random and not differences:
        compare_other_sizes(job, inputs, state.path, path, limits)
    if random or differences:
        first = next(iter(state.golden.values())).inputs
        refuse_random_graph(job, state.path, "the graph before it", first, limits, random)
    hint = ""
    if step.get("changes") == "nothing":
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
        failures=[
            cast(CheckFailure, {"case": case, "output": name, **comparison.failure()})
            for case, name, comparison in differences
        ],
    )
    new_state = GraphState(path, inputs, cases.golden, actual, _carried(job, step, state, after))
    return StepResult(figures, new_state, cases.expected, differences, cases.warnings, hint)


def _step_cases(job: Job, step: Step, state: GraphState, after: ModelProto) -> StepCases:
    outputs, kind = ports(after)[1], kind_of(step)
    if step.get("reference") is not None:
        return golden_cases.reference_cases(job, state, step, outputs)
    if kind == "cast":
        return golden_cases.cast_cases(job, state, step)
    if kind == "function":
        return golden_cases.declared_cases(state, step)
    if kind == "rename":
        return golden_cases.renamed_cases(state, step)
    return StepCases(state.golden, state.computed)


def _carried(job: Job, step: Step, state: GraphState, after: ModelProto) -> dict[str, Case]:
    """Return the further cases after a step.

    Those with unknown outputs are left out; ``validate`` compares them in the graph before surgery.
    """
    found = {}
    for name, case in state.further.items():
        alone = replace(state, golden={name: case}, computed={name: case.outputs})
        with suppress(StageError):
            if kind_of(step) in ("cast", "cut"):  # the graph may have to compute outputs
                computed = run_cases(job, state.path, {name: case.inputs})
                alone = replace(alone, computed=computed)
            if "cut" in step:
                cases = golden_cases.cut_cases(job, alone, step)
            else:
                cases = _step_cases(job, step, alone, after)
            found[name] = replace(cases.golden[name], float_type=case.float_type)
    return found


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


def _write_checked(model: ModelProto, path: Path, before: Sequence[ValueInfoProto]) -> ModelProto:
    """Write ``model`` with fresh shapes; return it without external data.

    Inner shapes are inferred again, as old ones may be wrong; only outputs of custom operators keep
    theirs, which cannot be inferred. An output without a shape gets the one it had ``before``.
    Opsets of unused domains are removed: graphsurgeon leaves them.
    Raises: CheckFailed: the graph is invalid.
    """
    graph = model.graph
    functions = {(function.domain, function.name) for function in model.functions}
    custom = {
        name
        for node in graph.node
        if node.domain not in _ONNX_DOMAINS and (node.domain, node.op_type) not in functions
        for name in node.output
    }
    replace_messages(graph.value_info, [v for v in graph.value_info if v.name in custom])
    used = {"", "ai.onnx", *(node.domain for node in all_nodes(graph))}
    for function in model.functions:
        used |= {function.domain, *(node.domain for node in function.node)}
    replace_messages(model.opset_import, [e for e in model.opset_import if e.domain in used])
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, path)
    written = load_model(path, external_data=False)
    # the checker reports the reason of a failure
    with suppress(shape_inference.InferenceError, ValueError, RuntimeError):
        written = shape_inference.infer_shapes(written, data_prop=True)
    known = {value.name: value.type for value in before}
    for value in written.graph.output:
        if value.name in known and not value.type.tensor_type.HasField("shape"):
            old = known[value.name]
            if value.type.tensor_type.elem_type in (0, old.tensor_type.elem_type):
                value.type.CopyFrom(old)
    save_model(written, path)
    try:
        check_file(path, "the graph")
    except StageError as error:
        raise CheckFailed(error.problem, error.hint) from error
    return written
