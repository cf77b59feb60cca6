"""Check a built engine against the golden outputs, case by case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildsys.backends import load_backend
from buildsys.backends.base import Session
from buildsys.compare import Comparison, compare
from buildsys.errors import StageError, Unavailable
from buildsys.operators.implementation import implementation_of
from buildsys.tensors import Case, Tensor, load_case, save_tensors, tensor_of
from buildsys.worker.job import Job, StageResult

_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass
class _Checks:
    """What was compared so far."""

    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)


def run(job: Job) -> StageResult:
    """Run every case through the engine and compare all outputs. NaN and infinity always fail."""
    if "engine" not in job.inputs:
        return StageResult("unavailable", "there is no engine to check: see the result of the engine target")
    options = job.options["engine"]
    try:
        backend = load_backend(options["backend"], job.toolchain)
        uses = implementation_of(job, options["backend"]).uses
        session = backend.load(job.inputs["engine"], options, uses)
    except Unavailable as reason:
        return StageResult("unavailable", reason.problem, reason.hint)
    try:
        checks = _check_cases(job, session)
    finally:
        backend.unload(session)
    figures = {"cases": checks.cases, "tolerance": dict(job.options["tolerance"]), "failures": checks.failures}
    if checks.sentences:
        return StageResult("failed", _reason(job, checks), _hint(job), figures)
    return StageResult(figures=figures)


def _check_cases(job: Job, session: Session) -> _Checks:
    checks = _Checks()
    for name in job.options["cases"]:
        job.progress(f"case {name}")
        golden = load_case(job.inputs[f"case.{name}"])
        actual = session.run(golden.inputs)
        compared = dict(_compare_outputs(actual, golden.outputs, job.options["tolerance"]))
        checks.cases[name] = {output: comparison.figures() for output, comparison in compared.items()}
        failed = {output: comparison for output, comparison in compared.items() if not comparison.passed}
        for output, comparison in failed.items():
            checks.failures.append({"case": name, "output": output, **comparison.failure()})
            checks.sentences.append(
                f"output '{output}', case {name}: {comparison.sentence('the engine', 'the reference')}"
            )
        if failed:
            _keep_tensors(_failed_file(job, name), golden, actual, failed)
    return checks


def _compare_outputs(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: Mapping[str, float | None]
) -> Iterator[tuple[str, Comparison]]:
    for output, reference in expected.items():
        if output not in actual:
            raise StageError(f"the engine has no output '{output}', only {', '.join(actual)}")
        yield output, compare(*_in_one_type(actual[output], reference), tolerance)


def _in_one_type(actual: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return two floating-point tensors in a type that holds both: an engine may answer in another than PyTorch."""
    if actual.dtype != reference.dtype and {actual.dtype, reference.dtype} <= set(_FLOATS):
        return tensor_of(actual.values(), "float64"), tensor_of(reference.values(), "float64")
    return actual, reference


def _failed_file(job: Job, case: str) -> Path:
    # the folder is shared with the model's other engines
    return job.outputs["result"].parent / "failed" / f"{job.variant}-{case}.npz"


def _keep_tensors(file: Path, golden: Case, actual: Mapping[str, Tensor], failed: Mapping[str, Comparison]) -> None:
    file.parent.mkdir(exist_ok=True)
    save_tensors(
        file,
        {
            **{f"in.{name}": tensor for name, tensor in golden.inputs.items()},
            **{f"expected.{name}": golden.outputs[name] for name in failed},
            **{f"actual.{name}": actual[name] for name in failed},
        },
    )


def _reason(job: Job, checks: _Checks) -> str:
    more = f" (and {len(checks.sentences) - 1} more)" if len(checks.sentences) > 1 else ""
    return f"the engine {job.variant} of {job.model} is wrong: {checks.sentences[0]}{more}"


def _hint(job: Job) -> str:
    return f"the failing tensors lie in {job.model}/verify/failed/ as {job.variant}-CASE.npz"
