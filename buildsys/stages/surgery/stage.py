"""Change an exported or simplified graph by the manifest's steps, and show after each that it is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import check_file, copy_model, file_facts, load_model, ports
from buildsys.onnx_graphs.result_types import GraphSummary
from buildsys.onnx_graphs.tensors import load_case, save_case
from buildsys.stages.common.equivalence import Runtime, run_cases
from buildsys.stages.common.golden_check import OutputCheck, save_failed_tensors
from buildsys.stages.surgery.state import Point, Setting
from buildsys.stages.surgery.steps import Taken, take, title_of
from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    """Write the changed graph and, where the plan asks for them, the golden cases that belong to it.

    Raises: StageError: a step cannot be taken. CheckFailed: it made a graph that is not valid, or has another
        interface than declared.
    """
    with TemporaryDirectory(dir=job.outputs["model"].parent, prefix="surgery-") as folder:
        setting = _setting(job, Path(folder))
        point = _start(job)
        before = file_facts(load_model(point.path, external_data=False), point.path)
        taken: list[Taken] = []
        for number, step in enumerate(job.options["steps"], start=1):
            job.progress(f"step {number}: {title_of(step)}")
            taken.append(_take(step, number, point, setting))
            failed = _failure(job, number, taken[-1])
            if failed:
                return StageResult("failed", failed, taken[-1].hint, _figures(before, taken))
            point = taken[-1].point
        copy_model(point.path, job.outputs["model"])
    check_file(job.outputs["model"], "the graph after surgery")
    for case, tensors in point.golden.items():
        if f"case.{case}" in job.outputs:
            save_case(job.outputs[f"case.{case}"], tensors.inputs, tensors.outputs)
    return StageResult(figures={**_figures(before, taken), **_written(job)})


def _setting(job: Job, scratch: Path) -> Setting:
    return Setting(
        project=job.project,
        scratch=scratch,
        dims={case: origin["dims"] for case, origin in job.options["cases"].items()},
        tolerance=job.options.get("tolerance", {}),
        seed=job.options.get("seed", 0),
        runtime=Runtime.of(job),
        progress=job.progress,
    )


def _start(job: Job) -> Point:
    source = job.inputs["model"]
    check_file(source, "the graph before surgery")
    golden = {
        case: load_case(job.inputs[f"case.{origin['golden']}"])
        for case, origin in job.options["cases"].items()
    }
    computed = run_cases(
        source, {case: tensors.inputs for case, tensors in golden.items()}, Runtime.of(job)
    )
    return Point(source, job.options["inputs"], golden, computed)


def _take(step: dict[str, Any], number: int, point: Point, setting: Setting) -> Taken:
    try:
        return take(step, number, point, setting)
    except StageError as error:
        raise type(error)(
            f"surgery step {number} ({title_of(step)}): {error.problem}", error.hint
        ) from error


def _failure(job: Job, number: int, taken: Taken) -> str:
    """Return what is wrong with the numbers after a step, and keep the tensors; "" where nothing is."""
    found = list(taken.failures())
    if not found:
        return ""
    save_failed_tensors(
        job.outputs["result"].parent / "failed", list(_findings(number, taken)), taken.point.golden
    )
    case, name, comparison = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    told = comparison.sentence("the graph after it", taken.against)
    return f"surgery step {number} ({taken.title}) changed {name} in case {case}: {told}{more}"


def _findings(number: int, taken: Taken) -> Iterator[OutputCheck]:
    for case, name, comparison in taken.failures():
        expected, actual = taken.expected[case].get(name), taken.point.computed[case].get(name)
        yield OutputCheck(f"step{number}", case, name, expected, actual, comparison)


def _figures(before: GraphSummary, taken: Sequence[Taken]) -> dict[str, Any]:
    return {
        "before": before,
        "steps": [_step_figures(step) for step in taken],
        "warnings": [warning for step in taken for warning in step.warnings],
        "checker": "passed",
    }


def _step_figures(taken: Taken) -> dict[str, Any]:
    cases = {
        case: {name: found.figures() for name, found in outputs.items()}
        for case, outputs in taken.compared.items()
    }
    return {
        "step": taken.title,
        "removed": dict(taken.removed),
        "added": dict(taken.added),
        "nodes": taken.nodes,
        "against": taken.against,
        "basis": taken.basis,
        "cases": cases,
        "failures": [
            {"case": case, "output": name, **found.failure()}
            for case, name, found in taken.failures()
        ],
    }


def _written(job: Job) -> dict[str, Any]:
    path = job.outputs["model"]
    model = load_model(path, external_data=False)
    inputs, outputs = ports(model)
    return {"after": file_facts(model, path), "inputs": inputs, "outputs": outputs}
