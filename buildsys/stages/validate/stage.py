"""Check the exported and the simplified graph in ONNX Runtime against PyTorch's golden outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.backends.onnxruntime.session import session_options
from buildsys.onnx_graphs.tensors import Case, load_case
from buildsys.stages.common.golden_check import (
    Finding,
    and_more,
    case_figures,
    failures,
    judge_outputs,
    keep_failed,
)
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.operators.open_graph import open_graph
from buildsys.workers.job import Job, StageResult

_GRAPHS = ("exported", "simplified")


def run(job: Job) -> StageResult:
    """Compare both graphs with the golden outputs in every case.

    A failure names the output, the case, the index and both values; the tensors of each failed case are
    kept as ``failed/GRAPH-CASE.npz`` (keys ``in.``, ``expected.`` and ``actual.``) beside the result.
    """
    findings: list[Finding] = []
    for graph, golden in _golden(job).items():
        found = list(_findings(job, graph, golden))
        keep_failed(job.outputs["result"].parent / "failed", failures(found), golden)
        findings += found
    failed = failures(findings)
    figures = _figures(job, findings, failed)
    if not failed:
        return StageResult(figures=figures)
    return StageResult("failed", failed[0].sentence() + and_more(failed), figures=figures)


def _golden(job: Job) -> dict[str, dict[str, Case]]:
    """Return graph -> its golden cases; the simplified graph has its own where surgery has changed it."""
    shared = {case: load_case(job.inputs[f"case.{case}"]) for case in job.options["cases"]}
    if "simplified_cases" not in job.options:
        return dict.fromkeys(_GRAPHS, shared)
    own = {
        case: load_case(job.inputs[f"simplified.case.{case}"])
        for case in job.options["simplified_cases"]
    }
    return {"exported": shared, "simplified": own}


def _findings(job: Job, name: str, golden: Mapping[str, Case]) -> Iterator[Finding]:
    job.progress(f"running the {name} graph in {len(golden)} cases")
    # ONNX Runtime's own optimizations are off, so that each node is computed as the file says. With them a
    # fusion could hide what other runtimes will meet, and an error of a fusion would be blamed on the
    # export; the optimized graph is judged on its own when an ONNX Runtime engine is verified.
    options = session_options(optimization="disable", intra_op_threads=job.threads, few_runs=True)
    file, scratch = job.inputs[f"{name}.model"], job.outputs["result"].parent
    graph = open_graph(file, implementation_of(job), options, scratch)
    for case, tensors in golden.items():
        actual = graph.run(tensors.inputs)
        yield from judge_outputs(name, case, actual, tensors.outputs, job.options["tolerance"])


def _figures(job: Job, findings: list[Finding], failed: list[Finding]) -> dict[str, Any]:
    worst = max(findings, key=lambda finding: finding.comparison.relative, default=None)
    return {
        "graphs": {name: case_figures(finding for finding in findings if finding.graph == name) for name in _GRAPHS},
        "tolerance": dict(job.options["tolerance"]),
        "worst": None if worst is None else {
            "graph": worst.graph,
            "case": worst.case,
            "output": worst.output,
            "relative": worst.comparison.figures()["relative"],
        },
        "failures": [finding.failure() for finding in failed],
    }  # fmt: skip
