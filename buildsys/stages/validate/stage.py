"""The validate stage: exported and simplified graphs in ONNX Runtime against PyTorch."""

from __future__ import annotations

from buildsys.onnx_graphs.output_policies import uninformative_hint, uninformative_outputs
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import load_case
from buildsys.report.results.validate import ValidateResult
from buildsys.stages.common.golden_check import (
    and_more,
    check_outputs,
    golden_limits,
    summarize_checks,
)
from buildsys.stages.common.rounding_noise import RoundingNoise
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.operators.open_graph import open_graph
from buildsys.workers.job import Job, StageResult

_GRAPHS = ("exported", "simplified")
_STABLE = (
    "choose inputs.NAME.data, thresholds or weights for which it is stable, such as distinct scores"
    " (source.randomize: true draws weights that often give them)"
)


def run(job: Job) -> StageResult:
    """Compare both graphs with the golden outputs in every case.

    A failure states output, case, index and both values. The tensors of each failed case are saved
    as ``failed/GRAPH-CASE.npz`` (keys ``in.``, ``expected.`` and ``actual.``) next to the result.
    Unavailable with operators that only another backend implements; ``verify`` checks its engines.
    """
    missing = implementation_of(job).missing_operators(job.inputs["simplified.model"])
    if missing:
        return StageResult(
            "unavailable",
            f"nothing implements {' and '.join(missing)} for ONNX Runtime: only the engines are"
            " compared with PyTorch",
            "to compare the graphs as well, add function or library to its entry in ops",
        )
    shared = {case: load_case(job.inputs[f"case.{case}"]) for case in job.options["cases"]}
    golden = dict.fromkeys(_GRAPHS, shared)
    if "simplified_cases" in job.options:  # surgery changed the inputs or outputs
        golden["simplified"] = {
            case: load_case(job.inputs[f"simplified.case.{case}"])
            for case in job.options["simplified_cases"]
        }
    checks = {}
    for graph in _GRAPHS:
        job.progress(f"running the {graph} graph in {len(golden[graph])} cases")
        path = job.inputs[f"{graph}.model"]
        opened, noise = open_graph(job, path), RoundingNoise(job, path)
        is_changed = graph == "simplified" and "simplified_cases" in job.options
        compare = "compare_simplified" if is_changed else "compare"
        checks[graph] = check_outputs(job, graph, opened, golden[graph], compare, noise)
    summaries = {graph: summarize_checks(job, checks[graph], golden[graph]) for graph in _GRAPHS}
    failed = [check for found, _ in summaries.values() for check in found]
    every = [check for graph in _GRAPHS for check in checks[graph]]
    worst = max(every, key=lambda check: check.comparison.relative, default=None)
    figures: ValidateResult = {
        "graphs": {graph: numbers["cases"] for graph, (_, numbers) in summaries.items()},
        "tolerance": golden_limits(job, shared),
        "worst": None if worst is None else {
            "graph": worst.graph,
            "case": worst.case,
            "output": worst.output,
            "relative": worst.comparison.figures()["relative"],
        },
        "failures": [check.failure() for check in failed],
    }  # fmt: skip
    if failed:
        note = failed[0].comparison.note
        reason = failed[0].sentence() + (f"; {note}" if note else "") + and_more(failed)
        return StageResult("failed", reason, _STABLE if note else "", figures)
    for graph in _GRAPHS:
        cases: dict[str, dict[str, Comparison]] = {}
        for check in checks[graph]:
            cases.setdefault(check.case, {})[check.output] = check.comparison
        for output, reason in uninformative_outputs(cases.values()).items():
            problem = f"output {output}: {reason} in every case, so no case compares anything"
            figures["failures"] = [{"graph": graph, "output": output, "problem": problem}]
            return StageResult("failed", problem, uninformative_hint(output), figures)
    return StageResult(figures=figures)
