"""Compare what graphs compute with the golden outputs, and keep the tensors of what failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.onnx_graphs.tensor_comparison import Comparison, compare
from buildsys.onnx_graphs.tensors import Case, Tensor, save_tensors
from buildsys.report.results.header import ComparedCases


@dataclass(frozen=True)
class Finding:
    """One output: the golden one and what a graph gave for it, either may be missing."""

    graph: str
    case: str
    output: str
    expected: Tensor | None
    actual: Tensor | None
    comparison: Comparison

    def sentence(self) -> str:
        """Return what is wrong, with output, case, index and both values."""
        where = f"{self.output} differs in case {self.case} of the {self.graph} graph"
        return f"{where}: {self.comparison.sentence('ONNX Runtime', 'PyTorch')}"

    def failure(self) -> dict[str, Any]:
        """Return what is wrong, for a result file."""
        return {
            "graph": self.graph,
            "case": self.case,
            "output": self.output,
            **self.comparison.failure(),
        }


def judge_outputs(
    graph: str,
    case: str,
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: Mapping[str, Any],
) -> Iterator[Finding]:
    """Yield a finding per output; one that only one of both sides has is a failure."""
    for output, reference in expected.items():
        found = actual.get(output)
        comparison = (
            _missing("is missing in the graph")
            if found is None
            else compare(found, reference, tolerance)
        )
        yield Finding(graph, case, output, reference, found, comparison)
    for output in sorted(actual.keys() - expected.keys()):
        surplus = _missing(
            f"is an output of the graph that PyTorch does not give ({len(expected)} outputs)"
        )
        yield Finding(graph, case, output, None, actual[output], surplus)


def judged(
    findings: Iterable[Finding],
    golden: Mapping[str, Case],
    tolerance: Mapping[str, Any],
    folder: Path,
) -> tuple[list[Finding], dict[str, Any]]:
    """Return the findings that did not pass, whose tensors are kept in ``folder``, and the figures of all of them."""
    findings = list(findings)
    failed = failures(findings)
    keep_failed(folder, failed, golden)
    return failed, {
        "cases": case_figures(findings),
        "tolerance": dict(tolerance),
        "failures": [finding.failure() for finding in failed],
    }


def failures(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that did not pass."""
    return [finding for finding in findings if not finding.comparison.passed]


def case_figures(findings: Iterable[Finding]) -> ComparedCases:
    """Return case -> output -> numbers, for a result file."""
    cases: ComparedCases = {}
    for finding in findings:
        cases.setdefault(finding.case, {})[finding.output] = finding.comparison.figures()
    return cases


def and_more(failed: Sequence[Finding]) -> str:
    """Return how many failures there are beside the first, as an ending of its sentence."""
    return f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""


def keep_failed(folder: Path, failed: Sequence[Finding], golden: Mapping[str, Case]) -> None:
    """Write each failed case to ``folder`` as ``GRAPH-CASE.npz`` (keys ``in.``, ``expected.`` and ``actual.``)."""
    for graph, case in dict.fromkeys((finding.graph, finding.case) for finding in failed):
        tensors = {f"in.{name}": tensor for name, tensor in golden[case].inputs.items()}
        for finding in failed:
            if (finding.graph, finding.case) == (graph, case):
                sides = {"expected": finding.expected, "actual": finding.actual}
                tensors |= {
                    f"{side}.{finding.output}": tensor
                    for side, tensor in sides.items()
                    if tensor is not None
                }
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / f"{graph}-{case}.npz", tensors)


def _missing(problem: str) -> Comparison:
    return Comparison(float("inf"), float("inf"), None, None, False, problem=problem)
