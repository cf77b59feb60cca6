"""Comparison of graph outputs with golden outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.manifest.default_limits import effective_limits
from buildsys.onnx_graphs.agreement import Agreement, ComparedCase, output_agreements
from buildsys.onnx_graphs.output_policies import Policy, compare_outputs, load_assembled
from buildsys.onnx_graphs.result_types import CheckFailure, ComparedCases
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import Case, Tensor, save_tensors
from buildsys.stages.common.equivalence import run_case
from buildsys.stages.common.rounding_noise import RoundingNoise
from buildsys.stages.common.stability import Difference, are_explained
from buildsys.workers.job import Job

ORIGINAL = "the original model"  # a PyTorch network or an ONNX file


@dataclass(frozen=True)
class OutputCheck:
    """One output of a graph in one case; None if missing."""

    graph: str
    case: str
    output: str
    expected: Tensor | None
    actual: Tensor | None
    comparison: Comparison

    def sentence(self) -> str:
        """Return the difference with output, case, index and both values."""
        where = f"{self.output} differs in case {self.case} of the {self.graph} graph"
        return f"{where}: {self.comparison.sentence('ONNX Runtime', ORIGINAL)}"

    def failure(self) -> CheckFailure:
        """Return the difference as an entry of a result file."""
        place: CheckFailure = {"graph": self.graph, "case": self.case, "output": self.output}
        return {**place, **self.comparison.failure()}


class OutputRules(NamedTuple):
    """The policies of a graph's outputs, and those made of unlike parts."""

    policies: Mapping[str, Policy]
    assembled: Collection[str]


def output_rules(job: Job, suffix: str = "") -> OutputRules:
    """Read the rules of a job's graph, e.g. with the suffix ``_simplified``."""
    assembled = load_assembled(job.inputs.get(f"assembled{suffix}"))
    return OutputRules(job.options.get(f"compare{suffix}", {}), assembled)


def check_outputs(
    job: Job,
    name: str,
    graph: OrtGraph,
    golden: Mapping[str, Case],
    noise: RoundingNoise | None = None,
    rules: OutputRules | None = None,
) -> list[OutputCheck]:
    """Run a graph in every case; an unmatched output fails.

    ``noise`` of the graph excuses errors, unless the manifest sets the limit. ``rules`` are by
    default the job's.
    Raises: StageError: the graph cannot run.
    """
    limits, (policies, assembled) = golden_limits(job, golden), rules or output_rules(job)
    checks = []
    for case, tensors in golden.items():
        actual = run_case(graph, case, tensors.inputs)
        expected = {output: t for output, t in tensors.outputs.items() if output in actual}
        compared = compare_outputs(
            actual, expected, limits, policies, inputs=tensors.inputs, assembled=assembled
        )
        if noise is not None and job.options["tolerance"]["rtol"] is None:
            compared = noise.excuse(
                compared, actual, expected, limits, policies,
                inputs=tensors.inputs, assembled=assembled,
            )  # fmt: skip
        for output, reference in tensors.outputs.items():
            comparison = compared.get(output) or Comparison(problem="is missing in the graph")
            tensor = actual.get(output)
            checks.append(OutputCheck(name, case, output, reference, tensor, comparison))
        count = len(tensors.outputs)
        for output in sorted(actual.keys() - tensors.outputs.keys()):
            problem = f"is an extra output of the graph: {ORIGINAL} returns {count} outputs"
            extra = Comparison(problem=problem)
            checks.append(OutputCheck(name, case, output, None, actual[output], extra))
    return checks


def is_unstable(
    job: Job,
    graph: OrtGraph,
    noise: RoundingNoise,
    case: Case,
    failed: Sequence[OutputCheck],
    rules: OutputRules | None = None,
) -> bool:
    """Check if the last bits of weights and inputs explain every failed output of a case."""
    limits, (policies, assembled) = golden_limits(job, {"": case}), rules or output_rules(job)
    failures = {
        check.output: Difference(check.actual, check.expected, check.comparison)
        for check in failed
        if check.actual is not None and check.expected is not None
    }
    if len(failures) < len(failed):  # an output is missing
        return False

    own = graph.run(case.inputs)

    def draw(number: int) -> dict[str, Difference]:
        moved = noise.nudged_outputs(case.inputs, number)
        changes = compare_outputs(
            moved, own, limits, policies, inputs=case.inputs, assembled=assembled
        )
        return {name: Difference(moved[name], own[name], changes[name]) for name in changes}

    return are_explained(failures, draw, limits["rtol"])


def golden_limits(job: Job, golden: Mapping[str, Case]) -> dict[str, float | None]:
    """Choose the limits of comparisons with golden outputs."""
    float_type = next((case.float_type for case in golden.values()), "float32")
    kind = job.options.get("precision", "validate")
    return effective_limits(job.options["tolerance"], kind, float_type)


def judge_agreement(
    job: Job, checks: Sequence[OutputCheck], golden: Mapping[str, Case]
) -> tuple[list[OutputCheck], dict[str, Agreement]]:
    """Compare the variation of each output over all cases, within the limits of the precision.

    A failure is that of the case with most elements.
    """
    limits, by_case = golden_limits(job, golden), dict[str, list[OutputCheck]]()
    for check in checks:
        by_case.setdefault(check.case, []).append(check)
    agreements = output_agreements(
        [
            ComparedCase(
                golden[case].inputs,
                golden[case].outputs,
                {check.output: check.actual for check in outputs if check.actual is not None},
                {check.output: check.comparison for check in outputs},
            )
            for case, outputs in by_case.items()
        ],
        limits,
    )
    judged = list(checks)
    for output, agreement in agreements.items():
        if problem := agreement.problem(limits):
            places = (place for place, check in enumerate(checks) if check.output == output)
            place = max(
                places, key=lambda place: golden[checks[place].case].outputs[output].array.size
            )
            comparison = replace(checks[place].comparison, passed=False, problem=problem)
            judged[place] = replace(checks[place], comparison=comparison)
    return judged, agreements


def summarize_checks(
    job: Job, checks: Sequence[OutputCheck], golden: Mapping[str, Case]
) -> tuple[list[OutputCheck], dict[str, Any]]:
    """Summarize the failed checks and the figures of all.

    The tensors of failed cases are saved in ``failed/`` next to the result.
    """
    checks, agreements = judge_agreement(job, checks, golden)
    failed = [check for check in checks if not check.comparison.passed]
    save_failed_tensors(job.outputs["result"].parent / "failed", failed, golden)
    cases: ComparedCases = {}
    for check in checks:
        cases.setdefault(check.case, {})[check.output] = check.comparison.figures()
    figures: dict[str, Any] = {"cases": cases}
    if agreements:
        figures["agreement"] = {name: agreement.figures() for name, agreement in agreements.items()}
    return failed, {
        **figures,
        "tolerance": golden_limits(job, golden),
        "failures": [check.failure() for check in failed],
    }


def and_more(failed: Sequence[object]) -> str:
    """Return the number of further failures as the end of a sentence."""
    return f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""


def save_failed_tensors(
    folder: Path, failed: Sequence[OutputCheck], golden: Mapping[str, Case]
) -> None:
    """Write each failed case as ``GRAPH-CASE.npz``: keys ``in.``, ``expected.``, ``actual.``."""
    by_case: dict[tuple[str, str], list[OutputCheck]] = {}
    for check in failed:
        by_case.setdefault((check.graph, check.case), []).append(check)
    for (graph, case), checks in by_case.items():
        tensors = {f"in.{name}": tensor for name, tensor in golden[case].inputs.items()}
        for check in checks:
            for side, tensor in (("expected", check.expected), ("actual", check.actual)):
                if tensor is not None:
                    tensors[f"{side}.{check.output}"] = tensor
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / f"{graph}-{case}.npz", tensors)
