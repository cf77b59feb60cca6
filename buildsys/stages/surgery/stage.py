"""Surgery stage: change a graph by the manifest's steps, verifying each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import check_file, copy_model, file_facts, load_model, ports
from buildsys.onnx_graphs.output_policies import load_assembled
from buildsys.onnx_graphs.result_types import GraphSummary
from buildsys.onnx_graphs.tensor_types import assembled_outputs
from buildsys.onnx_graphs.tensors import load_case, save_case
from buildsys.stages.common.equivalence import run_cases
from buildsys.stages.common.golden_check import OutputCheck, and_more, save_failed_tensors
from buildsys.stages.surgery.golden_cases import GraphState
from buildsys.stages.surgery.result import SurgeryResult
from buildsys.stages.surgery.steps import StepResult, apply_step, describe_step
from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    """Write the changed graph and, if planned, its golden cases.

    Raises: StageError: a step does not fit. CheckFailed: its graph is invalid, or has another
        interface than declared.
    """
    target = job.outputs["model"]
    with TemporaryDirectory(dir=target.parent, prefix="surgery-") as folder:
        source = job.inputs["model"]
        check_file(source, "the graph before surgery")
        golden = {
            case: load_case(job.inputs[f"case.{origin['golden']}"])
            for case, origin in job.options["cases"].items()
        }
        feeds = {case: tensors.inputs for case, tensors in golden.items()}
        computed = run_cases(job, source, feeds)
        roles = {f"case.{origin['golden']}" for origin in job.options["cases"].values()}
        further = {
            role.removeprefix("case."): load_case(path)
            for role, path in job.inputs.items()
            if role.startswith("case.") and role not in roles
        }
        state = GraphState(source, job.options["inputs"], golden, computed, further)
        before = file_facts(load_model(state.path, external_data=False), state.path)
        results: list[StepResult] = []
        for number, step in enumerate(job.options["steps"], start=1):
            title = f"surgery step {number} ({describe_step(step)})"
            job.progress(f"step {number}: {describe_step(step)}")
            try:
                path = Path(folder) / f"step{number}" / "model.onnx"
                result = apply_step(job, step, state, path)
            except StageError as error:
                raise type(error)(f"{title}: {error.problem}", error.hint) from error
            results.append(result)
            state = result.state
            if failure := _failure(job, number, result):
                figures = _figures(before, results)
                return StageResult("failed", f"{title} {failure}", result.hint, figures)
        copy_model(state.path, target)
    check_file(target, "the graph after surgery")
    for case, tensors in state.golden.items():
        if f"case.{case}" in job.outputs:
            float_type = golden[case].float_type  # steps do not keep it
            save_case(job.outputs[f"case.{case}"], tensors.inputs, tensors.outputs, float_type)
    for case, tensors in state.further.items():
        path = job.outputs[f"case.{case}"]
        save_case(path, tensors.inputs, tensors.outputs, tensors.float_type)
    figures = _figures(before, results)
    model = load_model(target, external_data=False)
    figures["after"] = file_facts(model, target)
    figures["inputs"], figures["outputs"] = ports(model)
    if "assembled" in job.outputs:
        names = load_assembled(job.inputs["assembled"])
        for step in job.options["steps"]:
            names = [(step.get("rename") or {}).get(name, name) for name in names]
        names_kept = {*names, *assembled_outputs(model)} & {
            port["name"] for port in figures["outputs"]
        }
        job.outputs["assembled"].write_text(json.dumps({"outputs": sorted(names_kept)}))
    return StageResult(figures=figures)


def _failure(job: Job, number: int, result: StepResult) -> str:
    """Return a step's first difference and keep all tensors; "" without one."""
    differences = result.differences
    if not differences:
        return ""
    checks = [
        OutputCheck(
            f"step{number}",
            case,
            name,
            result.expected[case].get(name),
            result.state.computed[case].get(name),
            comparison,
        )
        for case, name, comparison in differences
    ]
    save_failed_tensors(job.outputs["result"].parent / "failed", checks, result.state.golden)
    case, name, comparison = differences[0]
    sentence = comparison.sentence("the graph after it", result.figures["against"])
    return f"changed {name} in case {case}: {sentence}{and_more(differences)}"


def _figures(before: GraphSummary, results: Sequence[StepResult]) -> SurgeryResult:
    return SurgeryResult(
        before=before,
        steps=[result.figures for result in results],
        warnings=[warning for result in results for warning in result.warnings],
        checker="passed",
    )
