"""Comparison of outputs with golden outputs or with those of another graph, case by case."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from buildsys.manifest.default_limits import AGREEMENT_LIMITS, effective_limits
from buildsys.onnx_graphs.agreement import Agreement, ComparedCase, output_agreements
from buildsys.onnx_graphs.output_policies import (
    Policy,
    compare_outputs,
    load_assembled,
    load_empty,
    uninformative_outputs,
)
from buildsys.onnx_graphs.result_types import (
    NOT_REQUIRED,
    CheckFailure,
    ComparedCases,
    Doubt,
    OutputComparison,
)
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import Case, Tensor, load_case, load_cases, save_tensors
from buildsys.stages.common.rounding_noise import is_of_values
from buildsys.workers.job import Job

ORIGINAL = "the original model"  # a PyTorch network or an ONNX file
Checks = Mapping[str, ComparedCase]  # by case
Limits = Mapping[str, float | None]
# agreement is measured, and nothing is beyond
_NO_AGREEMENT = {**dict.fromkeys(AGREEMENT_LIMITS["int8"]), "class_agreement": 0.0}


class WrongOutput(NamedTuple):
    """One output of a graph that is wrong in a case."""

    graph: str
    case: str
    output: str
    comparison: Comparison

    def sentence(self) -> str:
        """State the difference with output, case, index and both values."""
        where = f"{self.output} differs in case {self.case} of the {self.graph} graph"
        return f"{where}: {self.comparison.sentence('ONNX Runtime', ORIGINAL)}"

    def failure(self) -> CheckFailure:
        """Describe the difference for a result file."""
        place: CheckFailure = {"graph": self.graph, "case": self.case, "output": self.output}
        return {**place, **self.comparison.failure()}


class OutputRules(NamedTuple):
    """The policies of a graph's outputs, and those made of unlike parts."""

    policies: Mapping[str, Policy] = {}
    assembled: Collection[str] = ()
    are_reported: bool = False  # errors of values only; a metric decides


def output_rules(job: Job, suffix: str = "") -> OutputRules:
    """Read the rules of a job's graph, e.g. with the suffix ``_simplified``."""
    path = job.inputs.get(f"assembled{suffix}")
    policies = {**load_empty(path), **job.options.get(f"compare{suffix}", {})}
    return OutputRules(policies, load_assembled(path), "limit" in job.options)


def load_golden(job: Job) -> dict[str, Case]:
    """Load the golden cases of a job, and its samples."""
    golden = {name: load_case(job.inputs[f"case.{name}"]) for name in job.options["cases"]}
    if "samples" in job.inputs:
        for number, case in enumerate(load_cases(job.inputs["samples"]), start=1):
            golden[f"sample-{number}"] = case
    return golden


def golden_limits(
    job: Job, golden: Mapping[str, Case], precision: str = ""
) -> dict[str, float | None]:
    """Choose the limits of comparisons with golden outputs."""
    float_type = next((case.float_type for case in golden.values()), "float32")
    kind = precision or job.options.get("precision", "validate")
    limits = effective_limits(job.options["tolerance"], kind, float_type)
    return {**limits, **_NO_AGREEMENT} if "limit" in job.options else limits


def compare_case(
    golden: Case, actual: Mapping[str, Tensor], limits: Limits, rules: OutputRules
) -> ComparedCase:
    """Compare the outputs of a case; missing and extra ones fail."""
    expected = {name: tensor for name, tensor in golden.outputs.items() if name in actual}
    compared = compare_outputs(
        actual,
        expected,
        limits,
        rules.policies,
        inputs=golden.inputs,
        assembled=rules.assembled,
        alternatives=golden.alternatives,
    )
    for name in golden.outputs:
        if name not in actual:
            compared[name] = Comparison(problem="is missing in the graph")
    for name in sorted(actual.keys() - golden.outputs.keys()):
        count = len(golden.outputs)
        problem = f"is an extra output of the graph: {ORIGINAL} returns {count} outputs"
        compared[name] = Comparison(problem=problem)
    checked = ComparedCase(golden.inputs, golden.outputs, actual, compared)
    if rules.are_reported:
        for name, wrong in wrong_outputs(checked).items():
            if is_of_values(checked, name) or wrong.policy == "detections":
                compared[name] = replace(wrong.as_passed(), note=f"{wrong.problem}{NOT_REQUIRED}")
    return checked


def uncompared_case(case: str, described: str, cause: str) -> Doubt:
    """Describe a case without a comparison."""
    return Doubt(kind="uncompared", text=f"case {described} is not compared: {cause}", place=case)


def uncompared_problem(job: Job, compared: Collection[object], doubts: Sequence[Doubt]) -> str:
    """Return the reason to fail for cases without a comparison, or "".

    ``compared`` are the shape cases with a comparison. ``validate.uncompared`` decides.
    """
    setting = job.options.get("uncompared")
    if setting == "fail" and doubts:
        return doubts[0]["text"] + and_more(doubts)
    if compared or not doubts or setting == "warn":
        return ""
    return f"no shape case compares anything: {doubts[0]['text']}"


def uncompared_outputs(
    job: Job, cases: Iterable[Mapping[str, Comparison]]
) -> tuple[dict[str, str], list[Doubt]]:
    """Describe outputs without an informative case: problems, or doubts if the manifest says so."""
    texts = {
        output: f"output '{output}': {reason} in every case, so no case compares anything"
        for output, reason in uninformative_outputs(cases).items()
    }
    if job.options.get("uncompared") != "warn":
        return texts, []
    return {}, [Doubt(kind="output", text=text, place=output) for output, text in texts.items()]


def wrong_outputs(case: ComparedCase) -> dict[str, Comparison]:
    """Select the comparisons that failed, by output."""
    return {name: comparison for name, comparison in case.compared.items() if not comparison.passed}


def failures_of(graph: str, checks: Checks) -> list[WrongOutput]:
    """List the wrong outputs of all cases."""
    return [
        WrongOutput(graph, name, output, comparison)
        for name, case in checks.items()
        for output, comparison in wrong_outputs(case).items()
    ]


def case_figures(compared: Mapping[str, Comparison]) -> dict[str, OutputComparison]:
    """Collect the figures of one case for a result file."""
    return {output: comparison.figures() for output, comparison in compared.items()}


def figures_of(checks: Checks) -> ComparedCases:
    """Collect the figures of all cases for a result file."""
    return {name: case_figures(case.compared) for name, case in checks.items()}


def judge_agreement(checks: Checks, limits: Limits) -> tuple[Checks, dict[str, Agreement]]:
    """Judge each output's variation over all cases; a failure is in the largest case."""
    agreements, judged = output_agreements([*checks.values()], limits), dict(checks)
    for output, agreement in agreements.items():
        if problem := agreement.problem(limits):
            name = max(judged, key=lambda name: judged[name].expected[output].array.size)
            case = judged[name]
            comparison = replace(case.compared[output], passed=False, problem=problem)
            judged[name] = replace(case, compared={**case.compared, output: comparison})
    return judged, agreements


def summarize_checks(
    job: Job, graph: str, checks: Checks, limits: Limits
) -> tuple[list[WrongOutput], dict[str, Any]]:
    """List the failures and collect the figures; saves the tensors of failed cases."""
    judged, agreements = judge_agreement(checks, limits)
    for name, case in judged.items():
        save_failed(job, f"{graph}-{name}", case)
    failed = failures_of(graph, judged)
    figures: dict[str, Any] = {"cases": figures_of(judged), "tolerance": dict(limits)}
    if agreements:
        figures["agreement"] = {name: agreement.figures() for name, agreement in agreements.items()}
    return failed, {**figures, "failures": [output.failure() for output in failed]}


def and_more(failed: Sequence[object]) -> str:
    """Return the number of further failures as the end of a sentence."""
    return f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""


def save_failed(job: Job, name: str, case: ComparedCase) -> None:
    """Save the tensors of a failed case in ``failed/NAME.npz`` next to the result.

    Keys: ``in.INPUT``, and ``expected.OUTPUT`` and ``actual.OUTPUT`` of the wrong outputs.
    """
    wrong = wrong_outputs(case)
    if not wrong:
        return
    tensors = {f"in.{name}": tensor for name, tensor in case.inputs.items()}
    for side, outputs in (("expected", case.expected), ("actual", case.actual)):
        tensors |= {f"{side}.{name}": outputs[name] for name in wrong if name in outputs}
    folder = job.outputs["result"].parent / "failed"
    folder.mkdir(parents=True, exist_ok=True)  # shared with the model's other engines
    save_tensors(folder / f"{name}.npz", tensors)
