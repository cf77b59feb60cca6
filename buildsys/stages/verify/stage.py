"""Check a built engine against the golden outputs: every case in every optimization profile that holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildsys.backends import load_backend
from buildsys.backends.interface import Session, uses_tf32
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensor_comparison import Comparison, compare
from buildsys.onnx_graphs.tensors import Case, Tensor, load_case, save_tensors, tensor_of
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.verify.profiles import (
    CaseRun,
    Ranges,
    homeless,
    idle,
    runs_of,
    shown_case,
    shown_ranges,
)
from buildsys.workers.job import Job, StageResult

_FLOATS = ("float16", "bfloat16", "float32", "float64")
# the most that TF32 was seen to change outputs by, where its kernels cut float32 instead of rounding it: 0.11 of the
# largest one of efficientnet_b0
_OFF_BY_TF32 = 0.15
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
Compared = dict[str, Comparison]  # by output


@dataclass
class _Checks:
    """What was compared so far."""

    profiles: list[Ranges]
    compared: dict[CaseRun, Compared] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    not_held: list[str] = field(default_factory=list)  # cases of dims outside all explicit profiles


def run(job: Job) -> StageResult:
    """Run every case through the engine and compare all outputs. NaN and infinity always fail."""
    if "engine" not in job.inputs:
        return StageResult(
            "unavailable", "there is no engine to check: see the result of the engine target"
        )
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
    figures = _figures(job, checks)
    if checks.sentences:
        return StageResult("failed", _reason(job, checks), _hint(job, checks), figures)
    return StageResult(figures=figures)


def _check_cases(job: Job, session: Session) -> _Checks:
    golden = {name: load_case(job.inputs[f"case.{name}"]) for name in job.options["cases"]}
    shapes = {
        case: {n: tensor.shape for n, tensor in held.inputs.items()}
        for case, held in golden.items()
    }
    checks = _Checks(profiles=[dict(ranges) for ranges in session.profiles])
    runs = runs_of(checks.profiles, shapes)
    _check_coverage(job, checks, runs)
    for run in runs:
        place = "" if run.profile is None else f" in profile {run.profile}"
        job.progress(f"case {run.case}{place}")
        actual = session.run(golden[run.case].inputs, run.profile)
        _judge(job, checks, run, golden[run.case], actual)
    return checks


def _check_coverage(job: Job, checks: _Checks, runs: list[CaseRun]) -> None:
    """Note what no profile holds; it is a failure unless the manifest itself gives the engine narrower profiles."""
    outside = homeless(runs, list(job.options["cases"]))
    if job.options["engine"].get("profiles") is not None:
        checks.not_held = outside
    else:
        for case in outside:
            text = f"case {_shown(job, case)} fits no optimization profile of the engine"
            checks.sentences.append(f"{text} ({'; '.join(map(shown_ranges, checks.profiles))})")
            checks.failures.append(
                {"case": case, "dims": dict(job.options["cases"][case]), "problem": text}
            )
    for index in idle(runs, checks.profiles):
        text = f"no golden case fits profile {index} ({shown_ranges(checks.profiles[index])}), so nothing is known of it"
        checks.sentences.append(text)
        checks.failures.append({"profile": index, "problem": text})


def _judge(
    job: Job, checks: _Checks, run: CaseRun, golden: Case, actual: Mapping[str, Tensor]
) -> None:
    compared = dict(_compare_outputs(actual, golden.outputs, job.options["tolerance"]))
    checks.compared[run] = compared
    failed = {
        output: comparison for output, comparison in compared.items() if not comparison.passed
    }
    where = "" if run.profile is None or len(checks.profiles) == 1 else f", profile {run.profile}"
    numbered = {} if run.profile is None else {"profile": run.profile}
    for output, comparison in failed.items():
        place = {
            **numbered,
            "case": run.case,
            "dims": dict(job.options["cases"][run.case]),
            "output": output,
        }
        checks.failures.append({**place, **comparison.failure()})
        told = comparison.sentence("the engine", "the reference")
        checks.sentences.append(f"output '{output}', case {_shown(job, run.case)}{where}: {told}")
    if failed:
        name = f"{job.variant}{where.removeprefix(', ').replace('profile ', '-profile')}-{run.case}.npz"
        _keep_tensors(job.outputs["result"].parent / "failed" / name, golden, actual, failed)


def _compare_outputs(
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: Mapping[str, float | None],
) -> Iterator[tuple[str, Comparison]]:
    for output, reference in expected.items():
        if output not in actual:
            raise StageError(f"the engine has no output '{output}', only {', '.join(actual)}")
        yield output, compare(*_in_one_type(actual[output], reference), tolerance)


def _in_one_type(actual: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return two tensors of numbers in a type that holds both: an engine may answer in another than PyTorch.

    TensorRT 8.6, for one, has no int64 and answers in int32.
    """
    for names, widest in ((_FLOATS, "float64"), (_INTEGERS, "int64")):
        if actual.dtype != reference.dtype and {actual.dtype, reference.dtype} <= set(names):
            return tensor_of(actual.values(), widest), tensor_of(reference.values(), widest)
    return actual, reference


def _figures(job: Job, checks: _Checks) -> dict[str, Any]:
    """Return the numbers of every case (of several profiles the worst), and below them those of each profile."""
    cases: dict[str, dict[str, Any]] = {}
    for run, compared in checks.compared.items():
        for output, comparison in compared.items():
            known = cases.setdefault(run.case, {})
            if output not in known or _badness(comparison) > _badness(known[output]):
                known[output] = comparison
    ran = {case: cases[case] for case in job.options["cases"] if case in cases}
    return {
        "cases": {case: _numbers(compared) for case, compared in ran.items()},
        "dims": {case: dict(job.options["cases"][case]) for case in ran},
        **({"profiles": _profile_figures(checks)} if checks.profiles else {}),
        **(
            {"outside_profiles": checks.not_held, "warnings": [_outside(job, checks)]}
            if checks.not_held
            else {}
        ),
        "tolerance": dict(job.options["tolerance"]),
        "failures": checks.failures,
    }


def _profile_figures(checks: _Checks) -> list[dict[str, Any]]:
    return [
        {
            "profile": index,
            "ranges": {
                name: {point: list(shape) for point, shape in span.items()}
                for name, span in ranges.items()
            },
            "cases": {
                r.case: _numbers(compared)
                for r, compared in checks.compared.items()
                if r.profile == index
            },
        }
        for index, ranges in enumerate(checks.profiles)
    ]


def _numbers(compared: Compared) -> dict[str, Any]:
    return {output: comparison.figures() for output, comparison in compared.items()}


def _badness(comparison: Comparison) -> tuple[bool, bool, float]:
    return not comparison.passed, comparison.non_finite > 0, comparison.relative


def _outside(job: Job, checks: _Checks) -> str:
    names = ", ".join(_shown(job, case) for case in checks.not_held)
    return f"dims have cases that none of the engine's profiles holds, so it does not run them: {names}"


def _shown(job: Job, case: str) -> str:
    return shown_case(case, job.options["cases"][case])


def _keep_tensors(
    file: Path, golden: Case, actual: Mapping[str, Tensor], failed: Mapping[str, Comparison]
) -> None:
    file.parent.mkdir(exist_ok=True)  # shared with the model's other engines
    save_tensors(
        file,
        {
            **{f"in.{name}": tensor for name, tensor in golden.inputs.items()},
            **{f"expected.{name}": golden.outputs[name] for name in failed},
            **{f"actual.{name}": actual[name] for name in failed},
        },
    )


def _reason(job: Job, checks: _Checks) -> str:
    """Return the first failure, and how many cases are wrong beside those that are right."""
    wrong = {
        run.case
        for run, compared in checks.compared.items()
        if not all(c.passed for c in compared.values())
    }
    right = [
        case
        for case in job.options["cases"]
        if case in {run.case for run in checks.compared} - wrong
    ]
    share = f" in {len(wrong)} of {len(wrong) + len(right)} cases" if wrong and right else ""
    more = f" (and {len(checks.sentences) - 1} more)" if len(checks.sentences) > 1 else ""
    fine = (
        f"; it is right in case {', '.join(_shown(job, case) for case in right)}"
        if wrong and right
        else ""
    )
    return f"the engine {job.variant} of {job.model} is wrong{share}: {checks.sentences[0]}{more}{fine}"


def _hint(job: Job, checks: _Checks) -> str:
    kept = f"the failing tensors lie in {job.model}/verify/failed/ as {job.variant}-CASE.npz"
    without = without_tf32(job.options["engine"])
    if not without or not _may_be_tf32(checks):
        return kept
    return f"{without} computes in all bits of float32, which may be all that it lacks; {kept}"


def without_tf32(options: Mapping[str, Any]) -> str:
    """Return how the manifest keeps an engine from multiplying in TF32; "" where it does not do that."""
    of_tensorrt = options["precision"] == "fp32" and options["backend"].startswith("tensorrt")
    if not of_tensorrt or not uses_tf32(options):
        return ""
    return "tf32: false" if "tf32" in options else "flags: {tf32: false}"


def _may_be_tf32(checks: _Checks) -> bool:
    """Tell whether TF32 may be all that is wrong."""
    wrong = [
        found
        for compared in checks.compared.values()
        for found in compared.values()
        if not found.passed
    ]
    return bool(wrong) and all(
        found.non_finite == 0 and found.relative < _OFF_BY_TF32 for found in wrong
    )
