"""Surgery stage: change a graph by the manifest's steps, verifying each.

Every step goes one way: edit the graph, write and check it, carry the golden cases over, and
compare the new graph with the one before it, or with the step's reference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from onnx import ModelProto, shape_inference

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import Inputs, Interface, interface_after, kind_of
from buildsys.onnx_graphs.onnx_file import (
    check_file,
    copy_model,
    file_facts,
    interface,
    interface_changes,
    load_model,
    operator_counts,
    ports,
    save_model,
)
from buildsys.onnx_graphs.output_policies import load_assembled
from buildsys.onnx_graphs.result_types import CheckFailure
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensor_types import assembled_outputs
from buildsys.onnx_graphs.tensors import Case, load_case, save_case
from buildsys.stages.common.equivalence import (
    changed_counts,
    compare_cases,
    differences,
    figures_of,
    limits_of,
    random_operators,
    refuse_random_graph,
    run_cases,
)
from buildsys.stages.common.golden_check import OutputCheck, and_more, save_failed_tensors
from buildsys.stages.surgery import edits
from buildsys.stages.surgery.golden_cases import (
    GraphState,
    Step,
    StepCases,
    Tensors,
    kept_cases,
    reference_cases,
)
from buildsys.stages.surgery.other_sizes import compare_other_sizes
from buildsys.stages.surgery.result import SurgeryResult, SurgeryStep
from buildsys.workers.job import Job, StageResult

_ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_INTENDED = "if this is intended, set changes: numbers and a reference"


@dataclass(frozen=True)
class StepResult:
    """A completed step: the new graph, its cases and their differences."""

    figures: SurgeryStep
    state: GraphState
    cases: StepCases
    differences: Sequence[tuple[str, str, Comparison]]  # case, output


def run(job: Job) -> StageResult:
    """Write the changed graph and, if planned, its golden cases.

    Raises: StageError: a step does not fit. CheckFailed: its graph is invalid, or has another
        interface than declared.
    """
    target = job.outputs["model"]
    with TemporaryDirectory(dir=target.parent, prefix="surgery-") as folder:
        state = _state_before(job)
        before = file_facts(load_model(state.path, external_data=False), state.path)
        figures = SurgeryResult(before=before, steps=[], warnings=[])
        float_types = {case: tensors.float_type for case, tensors in state.golden.items()}
        for number, step in enumerate(job.options["steps"], start=1):
            title = f"surgery step {number} ({describe_step(step)})"
            job.progress(f"step {number}: {describe_step(step)}")
            try:
                result = _apply_step(job, step, state, Path(folder) / f"step{number}/model.onnx")
            except StageError as error:
                raise type(error)(f"{title}: {error.problem}", error.hint) from error
            figures["steps"].append(result.figures)
            figures["warnings"] += result.cases.warnings
            state = result.state
            if result.differences:
                hint = "" if step.get("changes") == "numbers" else _INTENDED
                reason = f"{title} {_failure(job, f'step{number}', result)}"
                return StageResult("failed", reason, hint, figures)
        copy_model(state.path, target)
    check_file(target, "the graph after surgery")
    for case, tensors in {**state.golden, **state.further}.items():
        if f"case.{case}" in job.outputs:
            float_type = float_types.get(case, tensors.float_type)  # steps do not keep it
            save_case(job.outputs[f"case.{case}"], tensors.inputs, tensors.outputs, float_type)
    model = load_model(target, external_data=False)
    figures["after"] = file_facts(model, target)
    figures["inputs"], figures["outputs"] = ports(model)
    if "assembled" in job.outputs:
        names = load_assembled(job.inputs["assembled"])
        for step in job.options["steps"]:
            names = [(step.get("rename") or {}).get(name, name) for name in names]
        present = {port["name"] for port in figures["outputs"]}
        names = sorted({*names, *assembled_outputs(model)} & present)
        job.outputs["assembled"].write_text(json.dumps({"outputs": names}))
    return StageResult(figures=figures)


def _state_before(job: Job) -> GraphState:
    source = job.inputs["model"]
    check_file(source, "the graph before surgery")
    origins = {case: f"case.{origin['golden']}" for case, origin in job.options["cases"].items()}
    golden = {case: load_case(job.inputs[role]) for case, role in origins.items()}
    computed = run_cases(job, source, {case: tensors.inputs for case, tensors in golden.items()})
    further = {
        role.removeprefix("case."): load_case(path)
        for role, path in job.inputs.items()
        if role.startswith("case.") and role not in origins.values()
    }
    return GraphState(source, job.options["inputs"], golden, computed, further)


def _failure(job: Job, step: str, result: StepResult) -> str:
    """Describe a step's first difference, and save the tensors of all."""
    expected, computed = result.cases.expected, result.state.computed
    checks = [
        OutputCheck(
            step, case, name, expected[case].get(name), computed[case].get(name), comparison
        )
        for case, name, comparison in result.differences
    ]
    save_failed_tensors(job.outputs["result"].parent / "failed", checks, result.state.golden)
    case, name, comparison = result.differences[0]
    sentence = comparison.sentence("the graph after it", result.cases.against)
    return f"changed {name} in case {case}: {sentence}{and_more(result.differences)}"


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


def _apply_step(job: Job, step: Step, state: GraphState, path: Path) -> StepResult:
    """Apply one step and write its graph to ``path``.

    Raises: StageError: it does not fit the graph. CheckFailed: the new graph is invalid or random,
        or has another interface.
    """
    before = load_model(state.path)
    counts, limits, old_interface = operator_counts(before), limits_of(before), interface(before)
    inputs = interface_after(Interface(dict(state.inputs), None), [step]).inputs
    cut_cases = kept_cases(job, state, step) if "cut" in step else None
    after = _write_checked(_edited(job, step, before, state, inputs, cut_cases), path)
    if kind_of(step) in ("function", "replace"):
        _check_interface(step, old_interface, interface(after))
    cases = cut_cases or _cases_after(job, step, state, after)
    feeds = {case: tensors.inputs for case, tensors in cases.golden.items()}
    actual = run_cases(job, path, feeds)
    compared = compare_cases(actual, cases.expected, cases.limits or limits, feeds)
    different = differences(compared)
    now, random = operator_counts(after), random_operators(counts)
    keeps_ports = step.get("inputs") is None and step.get("outputs") is None
    if step.get("changes") == "nothing" and keeps_ports and not random and not different:
        compare_other_sizes(job, inputs, state.path, path, limits)
    if random or different:
        first = next(iter(state.golden.values())).inputs
        refuse_random_graph(job, state.path, "the graph before it", first, limits, random)
    removed, added = changed_counts(counts, now)
    figures = SurgeryStep(
        step=describe_step(step),
        removed=removed,
        added=added,
        nodes=sum(now.values()),
        against=cases.against,
        basis=cases.basis,
        cases=figures_of(compared),
        failures=[
            cast(CheckFailure, {"case": case, "output": name, **comparison.failure()})
            for case, name, comparison in different
        ],
    )
    further = _carried(job, step, state, after)
    return StepResult(
        figures, GraphState(path, inputs, cases.golden, actual, further), cases, different
    )


def _edited(
    job: Job,
    step: Step,
    model: ModelProto,
    state: GraphState,
    inputs: Inputs,
    cut_cases: StepCases | None,
) -> ModelProto:
    if cut_cases:  # its edit needs the computed types
        shapes = {name: tensor["shape"] for name, tensor in inputs.items()}
        case = next(iter(cut_cases.golden.values()))
        tensors = {**case.inputs, **case.outputs}
        kinds = {name: (tensor.dtype, len(tensor.shape)) for name, tensor in tensors.items()}
        return edits.cut(model, step, shapes, kinds)
    if "function" in step:
        return edits.call_hook(model, step, job.project)
    if "replace" in step:
        return edits.replace(model, step, job.project)
    if "fix_dims" in step:
        return edits.fix_dims(model, step, state.inputs)
    return edits.rename(model, step) if "rename" in step else edits.cast(model, step)


def _cases_after(job: Job, step: Step, state: GraphState, after: ModelProto) -> StepCases:
    if step.get("reference") is not None:
        return reference_cases(job, state, step, ports(after)[1])
    return kept_cases(job, state, step)


def _carried(job: Job, step: Step, state: GraphState, after: ModelProto) -> dict[str, Case]:
    """Carry the further cases over a step.

    Those with unknown outputs are left out; ``validate`` compares them in the graph before surgery.
    """
    carried = {}
    for name, case in state.further.items():
        with suppress(StageError):
            computed: Mapping[str, Tensors] = {name: case.outputs}
            if kind_of(step) in ("cast", "cut"):  # the graph may have to compute outputs
                computed = run_cases(job, state.path, {name: case.inputs})
            alone = replace(state, golden={name: case}, computed=computed)
            cases = _cases_after(job, step, alone, after)
            carried[name] = replace(cases.golden[name], float_type=case.float_type)
    return carried


def _check_interface(step: Step, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise CheckFailed for undeclared changes of inputs or outputs."""
    expected: dict[str, Any] = {"opset": {}}  # may change: callers of the graph do not see it
    for side in ("input", "output"):
        expected[side] = before[side]
        if (declared := step.get(f"{side}s")) is not None:
            present = {port["name"]: port for port in after[side]}
            expected[side] = [
                {"name": name, **present.get(name, {}), **_set_fields(tensor)}
                for name, tensor in declared.items()
            ]
    changed = next(interface_changes(expected, {**after, "opset": {}}), None)
    if changed:
        hint = "declare new inputs and outputs in the step" if "function" in step else ""
        raise CheckFailed(f"it changed the interface of the graph: {changed}", hint)
    old_names = {port["name"] for side in ("input", "output") for port in before[side]}
    new_names = [port["name"] for side in ("input", "output") for port in expected[side]]
    if step["changes"] == "nothing" and (new := [n for n in new_names if n not in old_names]):
        raise StageError(
            f"the values of the new {new[0]} are unknown",
            "set changes: numbers, with a reference for the outputs",
        )


def _set_fields(tensor: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tensor[key] for key in ("dtype", "shape") if tensor[key] is not None}


def _write_checked(model: ModelProto, path: Path) -> ModelProto:
    """Write ``model`` with fresh shapes; return it without external data.

    Inner shapes are inferred again, as old ones may be wrong; only outputs of custom operators keep
    theirs, which cannot be inferred.
    Raises: CheckFailed: the graph is invalid.
    """
    graph = model.graph
    defined = {(function.domain, function.name) for function in model.functions}
    custom = {
        name
        for node in graph.node
        if node.domain not in _ONNX_DOMAINS and (node.domain, node.op_type) not in defined
        for name in node.output
    }
    edits.replace_messages(graph.value_info, [v for v in graph.value_info if v.name in custom])
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, path)
    written = load_model(path, external_data=False)
    # the checker reports the reason of a failure
    with suppress(shape_inference.InferenceError, ValueError, RuntimeError):
        written = shape_inference.infer_shapes(written, data_prop=True)
    save_model(written, path)
    check_file(path, "the graph", CheckFailed)
    return written
