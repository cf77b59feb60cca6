"""The verify stage: a built engine against the golden outputs.

Every case runs in every optimization profile it fits. The loaded engine, not the manifest, is asked
for its profiles, because the engine is what will be shipped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import le

from buildsys.backends.interface import Session, load_backend, stand_in_types
from buildsys.errors import StageError, Unavailable
from buildsys.manifest.exports import OTHER_EXPORTS
from buildsys.manifest.shape_cases import dims_of_shapes, format_case
from buildsys.onnx_graphs.agreement import Agreement, ComparedCase, output_agreements
from buildsys.onnx_graphs.result_types import CheckFailure, Doubt
from buildsys.onnx_graphs.tensor_comparison import DIFFER, Comparison
from buildsys.onnx_graphs.tensors import Case, load_case, nudged_tensors, tensor_of
from buildsys.report.formatting import first_names
from buildsys.stages.common.difference_hints import (
    STABLE_HINT,
    UNINFORMATIVE,
    VARIATION_HINT,
    integer_hint,
    uninformative_changes,
    wide_integer_hint,
)
from buildsys.stages.common.golden_check import (
    and_more,
    case_figures,
    compare_case,
    golden_limits,
    load_golden,
    output_rules,
    save_failed,
    uncompared_case,
    uncompared_outputs,
    uncompared_problem,
    wrong_outputs,
)
from buildsys.stages.common.rounding_noise import UNSTABLE, is_unstable
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.verify.result import VerifyResult
from buildsys.system.backend_registry import describe_backend
from buildsys.workers.job import Job, StageResult

Shape = Sequence[int]
Ranges = Mapping[str, Mapping[str, Shape]]  # input -> {"min": shape, "opt": shape, "max": shape}
# The largest change by TF32 seen, on kernels that truncate float32 instead of rounding it, was 0.11
# of the largest output (efficientnet_b0).
_MAX_TF32_ERROR = 0.15
_MOST_NAMED = 4


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
        verification = Verification(job, session)
        verification.compare_cases()
    finally:
        session.close()
    figures = verification.figures()
    if verification.sentences:
        hint, changes = verification.hint(), verification.changes()
        return StageResult("failed", verification.reason(), hint, figures, changes)
    return StageResult(figures=figures)


class Verification:
    """The comparison of a loaded engine with the golden outputs."""

    def __init__(self, job: Job, session: Session) -> None:
        self._job, self._session = job, session
        self._options = job.options["engine"]
        self._cases: dict[str, Mapping[str, int]] = dict(job.options["cases"])  # case -> dims
        self._profiles = [dict(ranges) for ranges in session.profiles]
        self._rules = output_rules(job)
        self._compared: dict[CaseRun, Mapping[str, Comparison]] = {}
        self._limits: dict[str, float | None] = {}
        self._failures: list[CheckFailure] = []
        self.sentences: list[str] = []  # one per failure
        self._outside: list[str] = []  # cases outside all explicit profiles
        self._uninformative: list[str] = []
        self._agreements: dict[str, Agreement] = {}
        self._warnings: list[str] = []
        self._doubts: list[Doubt] = []
        self._is_uncompared = False

    def compare_cases(self) -> None:
        """Compare every case in every profile it fits, then the further cases.

        A case without one fails, unless the manifest gives the engine explicit, narrower profiles.
        """
        job = self._job
        golden = load_golden(job)
        self._limits = golden_limits(job, golden, self._options["precision"])
        self._cases = {name: {} for name in golden} | self._cases  # samples too
        runs = plan_runs(self._profiles, {name: _shapes(case) for name, case in golden.items()})
        self._check_coverage(runs)
        finished: dict[int | None, list[ComparedCase]] = {}
        for number, run in enumerate(runs):
            where = "" if run.profile is None else f" in profile {run.profile}"
            job.progress(f"case {run.case}{where}")
            job.count(number, len(runs), "cases")
            checked = self._run_case(run, golden[run.case])
            if not self._leaves_out(run, checked):
                self._record(run, checked)
                finished.setdefault(run.profile, []).append(checked)
        for profile, cases in finished.items():
            self._judge_agreement(output_agreements(cases, self._limits), profile)
        problems, doubts = uncompared_outputs(job, self._compared.values())
        for output, problem in problems.items():
            self._fail(problem, {"output": output})
            self._uninformative.append(output)
        compared = list(self._compared)
        if not self.sentences:
            self._compare_further_cases()
        if not self.sentences and (text := uncompared_problem(job, compared, self._doubts)):
            self._fail(text, {})
            self._is_uncompared = True
        self._doubts += doubts

    def _check_coverage(self, runs: Sequence[CaseRun]) -> None:
        """Fail for cases without a profile, and profiles without a case."""
        covered, used = {run.case for run in runs}, {run.profile for run in runs}
        outside = [case for case in self._job.options["cases"] if case not in covered]
        if not describe_backend(self._options["backend"]).accepts_all_sizes(self._options):
            if outside:
                names = first_names([*map(self._name, outside)], _MOST_NAMED)
                self._warnings.append(
                    f"these cases fit none of the engine's profiles and are not run: {names}"
                )
            self._outside, outside = outside, []
        for case in outside:
            problem = f"case {self._name(case)} fits no optimization profile of the engine"
            profiles = "; ".join(map(format_ranges, self._profiles[:_MOST_NAMED]))
            dims = dict(self._cases[case])
            self._fail(f"{problem} ({profiles})", {"case": case, "dims": dims, "problem": problem})
        for index, profile in enumerate(self._profiles):
            if index not in used:
                ranges = format_ranges(profile)
                text = f"no golden case fits profile {index} ({ranges}), so it is unverified"
                self._fail(text, {"profile": index})

    def _judge_agreement(self, agreements: Mapping[str, Agreement], profile: int | None) -> None:
        """Judge the variation of outputs over all cases of a profile."""
        several = profile is not None and len(self._profiles) > 1
        for output, agreement in agreements.items():
            self._agreements[f"{output}, profile {profile}" if several else output] = agreement
            if agreement.uninformative:
                text = f"output '{output}': {agreement.uninformative}"
                self._doubts.append(Doubt(kind="output", text=text, place=output))
            if problem := agreement.problem(self._limits):
                where = f" in profile {profile}" if several else ""
                sentence = f"output '{output}'{where}: {problem}"
                self._fail(sentence, {"output": output, "problem": problem})

    def _compare_further_cases(self) -> None:
        """Compare the further cases of ``validate`` that fit a profile."""
        job, further = self._job, self._job.options.get("further", {"cases": ()})
        paths = {name: job.inputs.get(f"case.{name}") for name in further["cases"]}
        # others have no such size, or the network refuses it
        files = {name: path for name, path in paths.items() if path is not None}
        if files:
            job.progress("reading further cases")
        for name, path in files.items():
            golden = load_case(path)
            shapes = _shapes(golden)
            self._cases[name] = dims_of_shapes(further["shapes"], shapes)
            for run in plan_runs(self._profiles, {name: shapes}):
                job.progress(f"case {self._name(name)}")
                try:
                    checked = self._run_case(run, golden)
                except StageError as error:
                    problem = f"case {self._name(name)}: {error.problem}"
                    raise type(error)(problem, error.hint) from error
                if not self._leaves_out(run, checked):
                    self._record(run, checked)

    def _leaves_out(self, run: CaseRun, checked: ComparedCase) -> bool:
        """Leave a case out if the last bits of the inputs explain every wrong output."""

        def nudged(draw: int) -> ComparedCase:
            inputs = nudged_tensors(checked.inputs, draw)
            return self._run_case(run, Case(inputs, checked.actual))

        if not is_unstable(checked, nudged, self._limits["rtol"]):
            return False
        self._doubts.append(uncompared_case(run.case, self._name(run.case), UNSTABLE))
        return True

    def _run_case(self, run: CaseRun, golden: Case) -> ComparedCase:
        """Run a case; types that the library lacks become the reference's."""
        actual = self._session.run(golden.inputs, run.profile)
        stand_ins = stand_in_types(self._session)
        if missing := [output for output in golden.outputs if output not in actual]:
            names = first_names([*actual], _MOST_NAMED)
            problem = f"the engine has no output '{missing[0]}', only {names}"
            raise StageError(problem, "build the engine again")
        outputs = {output: actual[output] for output in golden.outputs}
        for output, reference in golden.outputs.items():
            if outputs[output].dtype == stand_ins.get(reference.dtype):
                outputs[output] = tensor_of(outputs[output].values(), reference.dtype)
        return compare_case(golden, outputs, self._limits, self._rules)

    def _record(self, run: CaseRun, checked: ComparedCase) -> None:
        """Record the verdicts of a run, and save the tensors of a failed one."""
        self._compared[run] = checked.compared
        several = run.profile is not None and len(self._profiles) > 1
        for output, comparison in wrong_outputs(checked).items():
            place: CheckFailure = {} if run.profile is None else {"profile": run.profile}
            place |= {"case": run.case, "dims": dict(self._cases[run.case]), "output": output}
            difference = comparison.sentence("the engine", "the reference")
            where = f", profile {run.profile}" if several else ""
            case = f"output '{output}', case {self._name(run.case)}{where}"
            self._fail(f"{case}: {difference}", {**place, **comparison.failure()})
        suffix = f"-profile{run.profile}" if several else ""
        save_failed(self._job, f"{self._job.variant}{suffix}-{run.case}", checked)

    def _name(self, case: str) -> str:
        return format_case(case, self._cases[case])

    def _fail(self, sentence: str, failure: CheckFailure) -> None:
        """Add a failure; its problem is by default the sentence."""
        self.sentences.append(sentence)
        self._failures.append({"problem": sentence, **failure})

    def figures(self) -> VerifyResult:
        """Collect the figures of every case, by its worst profile, and every profile."""

        def badness(comparison: Comparison) -> tuple[bool, bool, float]:
            return not comparison.passed, comparison.non_finite > 0, comparison.relative

        cases: dict[str, dict[str, Comparison]] = {}
        for run, compared in self._compared.items():
            for output, comparison in compared.items():
                worst = cases.setdefault(run.case, {})
                if output not in worst or badness(comparison) > badness(worst[output]):
                    worst[output] = comparison
        ran = {case: cases[case] for case in self._cases if case in cases}
        figures: VerifyResult = {
            "cases": {case: case_figures(compared) for case, compared in ran.items()},
            "dims": {case: dict(self._cases[case]) for case in ran},
        }
        if self._profiles:
            figures["profiles"] = [
                {
                    "profile": index,
                    "ranges": {
                        name: {point: list(shape) for point, shape in span.items()}
                        for name, span in ranges.items()
                    },
                    "cases": {
                        run.case: case_figures(compared)
                        for run, compared in self._compared.items()
                        if run.profile == index
                    },
                }
                for index, ranges in enumerate(self._profiles)
            ]
        if self._outside:
            figures["outside_profiles"] = self._outside
        figures["warnings"], figures["doubts"] = self._warnings, self._doubts
        if self._agreements:
            figures["agreement"] = {name: a.figures() for name, a in self._agreements.items()}
        figures["tolerance"] = self._limits
        figures["failures"] = self._failures
        return figures

    def _wrong_cases(self) -> set[str]:
        return {
            run.case
            for run, compared in self._compared.items()
            if not all(comparison.passed for comparison in compared.values())
        }

    def reason(self) -> str:
        """State the first failure and the number of wrong cases."""
        ran, wrong = {run.case for run in self._compared}, self._wrong_cases()
        right = [case for case in self._job.options["cases"] if case in ran - wrong]
        share, end = "", and_more(self.sentences)
        if wrong and right:
            share = f" in {len(wrong)} of {len(ran)} cases"
            end = f"; it is right in {first_names(right, _MOST_NAMED)}"
        engine = f"the engine {self._job.variant} of {self._job.model}"
        return f"{engine} is wrong{share}: {self.sentences[0]}{end}"

    @property
    def _is_uninformative(self) -> bool:
        """True if nothing is wrong but outputs without an informative case."""
        return bool(self._uninformative) and len(self._uninformative) == len(self.sentences)

    def changes(self) -> Sequence[str]:
        """List changes of the manifest that may help."""
        if self._is_uninformative:
            outputs = next(iter(self._compared.values()))
            return uninformative_changes(self._uninformative, outputs)
        return OTHER_EXPORTS if self._options["precision"] == "fp32" else ()

    def hint(self) -> str:
        """Name what makes a wrong engine right, "" if nothing is known."""
        if self._is_uncompared:
            return STABLE_HINT
        if self._is_uninformative:
            return UNINFORMATIVE
        description = describe_backend(self._options["backend"])
        places = [(n, outputs) for outputs in self._compared.values() for n in outputs]
        places = [(name, outputs) for name, outputs in places if not outputs[name].passed]
        wrong = [outputs[name] for name, outputs in places]
        integers = [c.worst_expected for c in wrong if isinstance(c.worst_expected, int)]
        is_wide = self._wrong_cases() == {"wide-integers"}
        if text := wide_integer_hint(self._options["backend"], wrong, is_wide=is_wide):
            return text
        disagrees = any(a.problem(self._limits) for a in self._agreements.values())
        if (wrong or disagrees) and self._options["precision"] != "fp32":
            hints = [self._precision_hint()]
            # in fp32, what rounding decides is known and no difference
            if wrong and len(integers) == len(wrong) and DIFFER in wrong[0].problem:
                hints.insert(0, integer_hint(*places[0]))
            if not wrong:
                hints.append(VARIATION_HINT)
            return "; ".join(filter(None, hints))
        remedy = description.exact_float32(self._options)
        is_small = all(c.non_finite == 0 and c.relative < _MAX_TF32_ERROR for c in wrong)
        if not (remedy and wrong and is_small):
            return ""
        cause = "the error is no larger than TF32 can cause"
        return f"{cause}: try {remedy}, which computes in full float32"

    def _precision_hint(self) -> str:
        """Explain how to keep nodes in fp32, as far as the backend can."""
        options = self._options
        description, precision = describe_backend(options["backend"]), options["precision"]
        if options.get("auto"):
            text = "the engine's own rounding exceeds what the search left to it"
            return f"{text}: raise search.margin, or the limits"
        if options.get("quantized"):
            return (
                "without VNNI, int8 sums overflow unless weights have 7 bits (reduce_range=True of"
                " the quantizer); if the error is acceptable, raise verify.int8"
            )
        remedies = []
        if precision in ("int8", "fp8") and options.get("quantization") != "dynamic":
            remedies.append("calibrate on data like the golden inputs (calibration.data)")
        explicit = options.get("quantization") == "explicit"
        if not description.takes_float32 and (options.get("typing") != "weak" or explicit):
            command = f"`buildsys debug --fp32-nodes {self._job.model}:{self._job.variant}`"
            remedies.append(f"{command} finds the nodes that must stay in fp32")
        if precision in description.auto_precisions(options):
            remedies.append(f"precision: auto-{precision} keeps the fewest nodes in fp32")
        return "; ".join(remedies)


def _shapes(case: Case) -> dict[str, Shape]:
    return {name: tensor.shape for name, tensor in case.inputs.items()}
