"""The verify stage: a built engine against the golden outputs.

Every case runs in every optimization profile it fits. The loaded engine, not the manifest, is asked
for its profiles, because the engine is what will be shipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import le

from buildsys.backends.interface import Session, load_backend, stand_in_types
from buildsys.errors import StageError, Unavailable
from buildsys.manifest.default_limits import effective_limits
from buildsys.manifest.shape_cases import dims_of_shapes, format_case
from buildsys.onnx_graphs.agreement import Agreement, ComparedCase, output_agreements
from buildsys.onnx_graphs.output_policies import (
    compare_outputs,
    load_assembled,
    uninformative_hint,
    uninformative_outputs,
)
from buildsys.onnx_graphs.result_types import CheckFailure, OutputComparison
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import (
    Case,
    Tensor,
    load_case,
    nudged_tensors,
    save_tensors,
    tensor_of,
)
from buildsys.stages.common.stability import Difference, are_explained
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.verify.result import VerifyResult
from buildsys.system.backend_registry import describe_backend
from buildsys.workers.job import Job, StageResult

Shape = Sequence[int]
Ranges = Mapping[str, Mapping[str, Shape]]  # input -> {"min": shape, "opt": shape, "max": shape}
# The largest change by TF32 seen, on kernels that truncate float32 instead of rounding it, was 0.11
# of the largest output (efficientnet_b0).
_MAX_TF32_ERROR = 0.15


@dataclass(frozen=True)
class CaseRun:
    """One golden case in one profile; None without profiles."""

    case: str
    profile: int | None


def plan_runs(
    profiles: Sequence[Ranges], shapes: Mapping[str, Mapping[str, Shape]]
) -> list[CaseRun]:
    """Plan every case in every profile it fits, profile by profile.

    ``shapes`` maps each case to its input shapes. An engine without profiles takes every case.
    """
    if not profiles:
        return [CaseRun(case, None) for case in shapes]
    return [
        CaseRun(case, index)
        for index, ranges in enumerate(profiles)
        for case, inputs in shapes.items()
        if all(
            len(span["min"]) == len(inputs[name])
            and all(map(le, span["min"], inputs[name]))
            and all(map(le, inputs[name], span["max"]))
            for name, span in ranges.items()
            if name in inputs
        )
    ]


def format_ranges(ranges: Ranges) -> str:
    """Format the ranges as in ``x [1, 3] to [8, 3]``."""
    return ", ".join(
        f"{name} {list(span['min'])} to {list(span['max'])}" for name, span in ranges.items()
    )


@dataclass
class _Checks:
    """Everything compared so far."""

    cases: dict[str, Mapping[str, int]]  # case -> dims
    profiles: list[Ranges]
    compared: dict[CaseRun, dict[str, Comparison]] = field(default_factory=dict)  # by output
    failures: list[CheckFailure] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)  # cases outside all explicit profiles
    hints: list[str] = field(default_factory=list)
    limits: dict[str, float | None] = field(default_factory=dict)
    agreements: dict[str, Agreement] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def name(self, case: str) -> str:
        return format_case(case, self.cases[case])

    def fail(self, sentence: str, failure: CheckFailure) -> None:
        """Add a failure; its problem is by default the sentence."""
        self.sentences.append(sentence)
        self.failures.append({"problem": sentence, **failure})


def run(job: Job) -> StageResult:
    """Compare all outputs in every case; NaN and infinity fail."""
    if "engine" not in job.inputs:
        return StageResult("unavailable", "there is no engine: see the result of its engine target")
    options = job.options["engine"]
    try:
        unusable = options.get("unusable", "")
        backend = load_backend(options["backend"], job.toolchain, unusable, to_run=True)
        uses = implementation_of(job, options["backend"]).uses
        session = backend.load(job.inputs["engine"], options, uses)
    except Unavailable as reason:
        return StageResult("unavailable", reason.problem, reason.hint)
    try:
        checks = _run_cases(job, session)
    finally:
        session.close()
    figures = _figures(checks)
    if checks.sentences:
        return StageResult("failed", _reason(job, checks), _hint(job, checks), figures)
    return StageResult(figures=figures)


def _run_cases(job: Job, session: Session) -> _Checks:
    """Compare every case in every profile it fits.

    A case without one fails, unless the manifest gives the engine explicit, narrower profiles.
    """
    golden = {name: load_case(job.inputs[f"case.{name}"]) for name in job.options["cases"]}
    shapes = {
        name: {input_: tensor.shape for input_, tensor in case.inputs.items()}
        for name, case in golden.items()
    }
    checks = _Checks(dict(job.options["cases"]), [dict(ranges) for ranges in session.profiles])
    float_type = next((case.float_type for case in golden.values()), "float32")
    precision = job.options["engine"]["precision"]
    checks.limits = effective_limits(job.options["tolerance"], precision, float_type)
    runs = plan_runs(checks.profiles, shapes)
    covered, used = {run.case for run in runs}, {run.profile for run in runs}
    outside = [case for case in checks.cases if case not in covered]
    engine = job.options["engine"]
    if not describe_backend(engine["backend"]).accepts_all_sizes(engine):
        checks.outside, outside = outside, []
    for case in outside:
        problem = f"case {checks.name(case)} fits no optimization profile of the engine"
        profiles = "; ".join(map(format_ranges, checks.profiles))
        dims = dict(checks.cases[case])
        failure: CheckFailure = {"case": case, "dims": dims, "problem": problem}
        checks.fail(f"{problem} ({profiles})", failure)
    for index, profile in enumerate(checks.profiles):
        if index not in used:
            ranges = format_ranges(profile)
            text = f"no golden case fits profile {index} ({ranges}), so it is unverified"
            checks.fail(text, {"profile": index})
    finished: dict[int | None, list[ComparedCase]] = {}
    for number, run in enumerate(runs):
        where = "" if run.profile is None else f" in profile {run.profile}"
        job.progress(f"case {run.case}{where}")
        job.count(number, len(runs), "cases")
        actual = _run_engine(session, golden[run.case], run.profile)
        own = golden[run.case]
        compared = _compare(job, checks, own, actual)
        _keep(job, checks, run, own, actual, compared)
        finished.setdefault(run.profile, []).append(
            ComparedCase(own.inputs, own.outputs, actual, compared)
        )
    for place, cases in finished.items():
        _judge_agreement(checks, output_agreements(cases, checks.limits), place)
    for output, reason in uninformative_outputs(checks.compared.values()).items():
        text = f"output '{output}': {reason} in every case, so no case compares anything"
        checks.fail(text, {"output": output})
        checks.hints.append(uninformative_hint(output))
    if not checks.sentences:
        _run_further_cases(job, session, checks)
    return checks


def _judge_agreement(
    checks: _Checks, agreements: Mapping[str, Agreement], profile: int | None
) -> None:
    """Judge the variation of outputs over all cases of a profile."""
    several = profile is not None and len(checks.profiles) > 1
    for output, agreement in agreements.items():
        checks.agreements[f"{output}, profile {profile}" if several else output] = agreement
        if agreement.uninformative:
            checks.warnings.append(f"output '{output}': {agreement.uninformative}")
        if problem := agreement.problem(checks.limits):
            where = f" in profile {profile}" if several else ""
            sentence = f"output '{output}'{where}: {problem}"
            checks.fail(sentence, {"output": output, "problem": problem})


def _run_further_cases(job: Job, session: Session, checks: _Checks) -> None:
    """Compare the further cases of ``validate`` that fit a profile."""
    further = job.options.get("further", {"cases": ()})
    paths = {name: job.inputs.get(f"case.{name}") for name in further["cases"]}
    # others have no such size, or the network refuses it
    files = {name: path for name, path in paths.items() if path is not None}
    if files:
        job.progress("reading further cases")
    for name, path in files.items():
        golden = load_case(path)
        shapes = {input_: tensor.shape for input_, tensor in golden.inputs.items()}
        checks.cases[name] = dims_of_shapes(further["shapes"], shapes)
        case_text = checks.name(name)
        for run in plan_runs(checks.profiles, {name: shapes}):
            job.progress(f"case {case_text}")
            try:
                actual = _run_engine(session, golden, run.profile)
            except StageError as error:
                raise type(error)(f"case {case_text}: {error.problem}", error.hint) from error
            compared = _compare(job, checks, golden, actual)
            if _is_unstable(job, session, checks, run, golden, actual, compared):
                checks.warnings.append(
                    f"case {case_text} is not compared: its outputs depend on the last bits of the"
                    " inputs"
                )
            else:
                _keep(job, checks, run, golden, actual, compared)


def _is_unstable(
    job: Job,
    session: Session,
    checks: _Checks,
    run: CaseRun,
    golden: Case,
    actual: Mapping[str, Tensor],
    compared: Mapping[str, Comparison],
) -> bool:
    """Check if the last bits of the inputs explain every failed output."""
    failures = {
        output: Difference(actual[output], golden.outputs[output], comparison)
        for output, comparison in compared.items()
        if not comparison.passed
    }
    own = replace(golden, outputs=actual)

    def draw(number: int) -> dict[str, Difference]:
        case = replace(golden, inputs=nudged_tensors(golden.inputs, number))
        moved = _run_engine(session, case, run.profile)
        return {
            name: Difference(moved[name], actual[name], change)
            for name, change in _compare(job, checks, own, moved).items()
        }

    return are_explained(failures, draw, checks.limits["rtol"])


def _run_engine(session: Session, case: Case, profile: int | None) -> dict[str, Tensor]:
    """Run a case; types that the library lacks become those of the reference."""
    actual, stand_ins = session.run(case.inputs, profile), stand_in_types(session)
    for output, reference in case.outputs.items():
        stand_in = stand_ins.get(reference.dtype)
        if output in actual and actual[output].dtype == stand_in:
            actual[output] = tensor_of(actual[output].values(), reference.dtype)
    return actual


def _compare(
    job: Job, checks: _Checks, golden: Case, actual: Mapping[str, Tensor]
) -> dict[str, Comparison]:
    missing = next((output for output in golden.outputs if output not in actual), None)
    if missing is not None:
        raise StageError(
            f"the engine has no output '{missing}', only {', '.join(actual)}",
            "build the engine again",
        )
    return compare_outputs(
        actual,
        golden.outputs,
        checks.limits,
        job.options.get("compare"),
        inputs=golden.inputs,
        assembled=load_assembled(job.inputs.get("assembled")),
    )


def _keep(
    job: Job,
    checks: _Checks,
    run: CaseRun,
    golden: Case,
    actual: Mapping[str, Tensor],
    compared: dict[str, Comparison],
) -> None:
    """Keep the verdicts of a run, and the tensors of a failed one."""
    checks.compared[run] = compared
    failed = {
        output: comparison for output, comparison in compared.items() if not comparison.passed
    }
    if not failed:
        return
    several = run.profile is not None and len(checks.profiles) > 1
    where = f", profile {run.profile}" if several else ""
    for output, comparison in failed.items():
        place: CheckFailure = {} if run.profile is None else {"profile": run.profile}
        place |= {"case": run.case, "dims": dict(checks.cases[run.case]), "output": output}
        difference = comparison.sentence("the engine", "the reference")
        case = f"output '{output}', case {checks.name(run.case)}{where}"
        checks.fail(f"{case}: {difference}", {**place, **comparison.failure()})
    suffix = f"-profile{run.profile}" if several else ""
    file = job.outputs["result"].parent / "failed" / f"{job.variant}{suffix}-{run.case}.npz"
    file.parent.mkdir(exist_ok=True)  # shared with the model's other engines
    tensors = {f"in.{name}": tensor for name, tensor in golden.inputs.items()}
    tensors |= {f"expected.{name}": golden.outputs[name] for name in failed}
    save_tensors(file, tensors | {f"actual.{name}": actual[name] for name in failed})


def _figures(checks: _Checks) -> VerifyResult:
    """Collect the figures of every case and every profile.

    A case has those of its worst profile.
    """

    def badness(comparison: Comparison) -> tuple[bool, bool, float]:
        return not comparison.passed, comparison.non_finite > 0, comparison.relative

    def figures_of(compared: Mapping[str, Comparison]) -> dict[str, OutputComparison]:
        return {output: comparison.figures() for output, comparison in compared.items()}

    cases: dict[str, dict[str, Comparison]] = {}
    for run, compared in checks.compared.items():
        for output, comparison in compared.items():
            worst = cases.setdefault(run.case, {})
            if output not in worst or badness(comparison) > badness(worst[output]):
                worst[output] = comparison
    ran = {case: cases[case] for case in checks.cases if case in cases}
    figures: VerifyResult = {
        "cases": {case: figures_of(compared) for case, compared in ran.items()},
        "dims": {case: dict(checks.cases[case]) for case in ran},
    }
    if checks.profiles:
        figures["profiles"] = [
            {
                "profile": index,
                "ranges": {
                    name: {point: list(shape) for point, shape in span.items()}
                    for name, span in ranges.items()
                },
                "cases": {
                    run.case: figures_of(compared)
                    for run, compared in checks.compared.items()
                    if run.profile == index
                },
            }
            for index, ranges in enumerate(checks.profiles)
        ]
    if checks.outside:
        names = ", ".join(map(checks.name, checks.outside))
        figures["outside_profiles"] = checks.outside
        checks.warnings.insert(
            0, f"these cases fit none of the engine's profiles and are not run: {names}"
        )
    if checks.warnings:
        figures["warnings"] = checks.warnings
    if checks.agreements:
        figures["agreement"] = {name: a.figures() for name, a in checks.agreements.items()}
    figures["tolerance"] = checks.limits
    figures["failures"] = checks.failures
    return figures


def _reason(job: Job, checks: _Checks) -> str:
    """State the first failure and the number of wrong cases."""
    ran = {run.case for run in checks.compared}
    wrong = {
        run.case
        for run, compared in checks.compared.items()
        if not all(comparison.passed for comparison in compared.values())
    }
    right = [case for case in job.options["cases"] if case in ran - wrong]
    share, fine = "", ""
    if wrong and right:
        share = f" in {len(wrong)} of {len(ran)} cases"
        fine = f"; it is right in case {', '.join(map(checks.name, right))}"
    more = f" (and {len(checks.sentences) - 1} more)" if len(checks.sentences) > 1 else ""
    engine = f"the engine {job.variant} of {job.model}"
    return f"{engine} is wrong{share}: {checks.sentences[0]}{more}{fine}"


def _hint(job: Job, checks: _Checks) -> str:
    if len(checks.hints) == len(checks.sentences):
        return checks.hints[0]
    options = job.options["engine"]
    remedy = describe_backend(options["backend"]).exact_float32(options)
    wrong = [
        comparison
        for compared in checks.compared.values()
        for comparison in compared.values()
        if not comparison.passed
    ]
    disagrees = any(agreement.problem(checks.limits) for agreement in checks.agreements.values())
    if (wrong or disagrees) and options["precision"] != "fp32":
        return _precision_hint(job)
    if not remedy or not wrong or not all(
        comparison.non_finite == 0 and comparison.relative < _MAX_TF32_ERROR for comparison in wrong
    ):  # fmt: skip
        return ""
    cause = "the error is no larger than TF32 can cause"
    return f"{cause}: try {remedy}, which computes in full float32"


def _precision_hint(job: Job) -> str:
    """Explain how to keep nodes in fp32, as far as the backend can."""
    options = job.options["engine"]
    description, precision = describe_backend(options["backend"]), options["precision"]
    if options.get("auto"):
        text = "the engine's own rounding exceeds what the search left to it"
        return f"{text}: raise search.margin, or the limits"
    remedies = []
    if precision in ("int8", "fp8") and options.get("quantization") != "dynamic":
        remedies.append("calibrate on data like the golden inputs (calibration.data)")
    explicit = options.get("quantization") == "explicit"
    if not description.takes_float32 and (options.get("typing") != "weak" or explicit):
        command = f"`buildsys debug --fp32-nodes {job.model}:{job.variant}`"
        remedies.append(f"{command} finds the nodes that must stay in fp32")
    if precision in description.auto_precisions(options):
        remedies.append(f"precision: auto-{precision} keeps the fewest nodes in fp32")
    return "; ".join(remedies)
