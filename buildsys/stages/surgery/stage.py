"""Surgery stage: change a graph by the manifest's steps, verifying each.

Every step goes one way: edit the graph, write and check it, carry the golden cases over, and
compare the new graph with the one before it, or with the step's reference.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from onnx import ModelProto, shape_inference

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import Inputs, Interface, data_after, interface_after, kind_of
from buildsys.onnx_graphs.onnx_file import (
    check_file,
    copy_model,
    file_facts,
    interface,
    interface_changes,
    load_model,
    ports,
    save_model,
)
from buildsys.onnx_graphs.output_policies import load_assembled
from buildsys.onnx_graphs.random_nodes import random_nodes, refuse_random
from buildsys.onnx_graphs.result_types import CheckFailure
from buildsys.onnx_graphs.tensor_types import assembled_outputs, output_facts
from buildsys.onnx_graphs.tensors import load_case, save_case
from buildsys.stages.common.golden_check import and_more, failures_of, figures_of, save_failed
from buildsys.stages.common.graph_runs import compare_cases, limits_of, run_cases
from buildsys.stages.surgery import edits
from buildsys.stages.surgery.golden_cases import (
    GraphState,
    Step,
    StepCases,
    compare_further,
    kept_cases,
    reference_cases,
)
from buildsys.stages.surgery.result import SurgeryResult, SurgeryStep
from buildsys.workers.job import Job, StageResult

_ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_INTENDED = "if this is intended, set changes: numbers and a reference"


@dataclass(frozen=True)
class StepResult:
    """A completed step: the new graph and, if its numbers differ, the reason."""

    figures: SurgeryStep
    state: GraphState
    warnings: tuple[str, ...]
    difference: str


def run(job: Job) -> StageResult:
    """Write the changed graph and, if planned, its golden cases.

    Raises: StageError: a step does not fit. CheckFailed: its graph is invalid or random, or has
        another interface than declared.
    """
    target = job.outputs["model"]
    with TemporaryDirectory(dir=target.parent, prefix="surgery-") as folder:
        state = _state_before(job)
        before = file_facts(load_model(state.path, external_data=False), state.path)
        allowed = random_nodes(load_model(state.path, external_data=False))
        figures = SurgeryResult(before=before, steps=[], warnings=[])
        for number, step in enumerate(job.options["steps"], start=1):
            title = f"surgery step {number} ({describe_step(step)})"
            job.progress(f"step {number}: {describe_step(step)}")
            try:
                result = _apply_step(job, step, state, Path(folder) / f"step{number}/model.onnx")
            except StageError as error:
                raise type(error)(f"{title}: {error.problem}", error.hint) from error
            figures["steps"].append(result.figures)
            figures["warnings"] += result.warnings
            state = result.state
            if result.difference:
                hint = "" if step.get("changes") == "numbers" else _INTENDED
                return StageResult("failed", f"{title} {result.difference}", hint, figures)
        copy_model(state.path, target)
    check_file(target, "the graph after surgery")
    for case, tensors in {**state.golden, **state.further}.items():
        if f"case.{case}" in job.outputs:
            path = job.outputs[f"case.{case}"]
            kind, alternatives = tensors.float_type, tensors.alternatives
            save_case(path, tensors.inputs, tensors.outputs, kind, alternatives)
    model = load_model(target, external_data=False)
    refuse_random(dict.fromkeys(random_nodes(model), ""), allowed)
    figures["after"] = file_facts(model, target)
    figures["inputs"], figures["outputs"] = ports(model)
    if "assembled" in job.outputs:
        names = load_assembled(job.inputs["assembled"])
        for step in job.options["steps"]:
            names = [(step.get("rename") or {}).get(name, name) for name in names]
        facts = output_facts(model, {*names, *assembled_outputs(model)})
        job.outputs["assembled"].write_text(json.dumps(facts))
    return StageResult(figures=figures)


def _state_before(job: Job) -> GraphState:
    source = job.inputs["model"]
    check_file(source, "the graph before surgery")
    origins = {case: f"case.{origin['golden']}" for case, origin in job.options["cases"].items()}
    golden = {case: load_case(job.inputs[role]) for case, role in origins.items()}
    further = {
        role.removeprefix("case."): load_case(path)
        for role, path in job.inputs.items()
        if role.startswith("case.") and role not in origins.values()
    }
    inputs, data = job.options["inputs"], job.options.get("data", {})
    return GraphState(source, inputs, data, golden, further)


def describe_step(step: Step) -> str:
    """Return e.g. ``rename x → image``."""
    kind = kind_of(step)
    value = step[kind]
    if kind == "cut":
        sides = {side: value[side] for side in ("inputs", "outputs") if value[side] is not None}
        return "cut " + ", ".join(f"{side} {', '.join(names)}" for side, names in sides.items())
    if kind == "function":
        return f"function {value}"
    return f"{kind} " + ", ".join(f"{old} → {new}" for old, new in value.items())


def _apply_step(job: Job, step: Step, state: GraphState, path: Path) -> StepResult:
    """Apply one step and write its graph to ``path``.

    Raises: StageError: it does not fit the graph. CheckFailed: the new graph is invalid or has
        another interface.
    """
    before = load_model(state.path)
    limits, old_interface = limits_of(before), interface(before)
    inputs = interface_after(Interface(dict(state.inputs), None), [step]).inputs
    cases = None if step.get("reference") else kept_cases(job, state, step)
    after = _write_checked(_edited(job, step, before, inputs, cases), path)
    if "function" in step:
        _check_interface(step, old_interface, interface(after))
    cases = cases or reference_cases(job, state, step, ports(after)[1])
    feeds = {case: tensors.inputs for case, tensors in cases.golden.items()}
    actual = run_cases(job, path, feeds)
    compared = compare_cases(actual, cases.expected, cases.limits or limits, feeds)
    different = failures_of("", compared)
    keeps_ports = step.get("inputs") is None and step.get("outputs") is None
    data = data_after(state.data, [step])
    new_state = GraphState(path, inputs, data, cases.golden, cases.further)
    if step.get("changes") == "nothing" and keeps_ports and not different:
        compare_further(job, state, new_state, next(iter(feeds.values())), limits)
    difference = ""
    if different:
        for case, checked in compared.items():
            save_failed(job, f"{path.parent.name}-{case}", checked)
        _, case, name, first_result = different[0]
        sentence = first_result.sentence("the graph after it", cases.against)
        difference = f"changed {name} in case {case}: {sentence}{and_more(different)}"
    figures = SurgeryStep(
        step=describe_step(step),
        against=cases.against,
        cases=figures_of(compared),
        failures=[
            cast(CheckFailure, {"case": case, "output": name, **result.failure()})
            for _, case, name, result in different
        ],
    )
    return StepResult(figures, new_state, cases.warnings, difference)


def _edited(
    job: Job, step: Step, model: ModelProto, inputs: Inputs, cases: StepCases | None
) -> ModelProto:
    if "cut" in step and cases:
        shapes = {name: tensor["shape"] for name, tensor in inputs.items()}
        case = next(iter(cases.golden.values()))
        tensors = {**case.inputs, **case.outputs}
        kinds = {name: (tensor.dtype, len(tensor.shape)) for name, tensor in tensors.items()}
        return edits.cut(model, step, shapes, kinds)
    if "function" in step:
        return edits.call_hook(model, step, job.project)
    return edits.rename(model, step) if "rename" in step else edits.cast(model, step)


def _check_interface(step: Step, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise CheckFailed for undeclared changes of inputs or outputs."""
    expected: dict[str, Any] = {"opset": {}}  # may change: callers of the graph do not see it
    for side in ("input", "output"):
        expected[side] = before[side]
        if (declared := step.get(f"{side}s")) is not None:
            present = {port["name"]: port for port in after[side]}
            expected[side] = [
                {
                    "name": name,
                    **present.get(name, {}),
                    **{f: tensor[f] for f in ("dtype", "shape") if tensor[f] is not None},
                }
                for name, tensor in declared.items()
            ]
    changed = next(interface_changes(expected, {**after, "opset": {}}), None)
    if changed:
        hint = "declare new inputs and outputs in the step"
        raise CheckFailed(f"it changed the interface of the graph: {changed}", hint)


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
