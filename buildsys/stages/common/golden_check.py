"""Comparison of graph outputs with golden outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.onnx_graphs.tensor_comparison import Comparison, compare
from buildsys.onnx_graphs.tensors import Case, Tensor, save_tensors
from buildsys.report.results.header import CheckFailure, ComparedCases


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
        return f"{where}: {self.comparison.sentence('ONNX Runtime', 'PyTorch')}"

    def failure(self) -> CheckFailure:
        """Return the difference as an entry of a result file."""
        place: CheckFailure = {"graph": self.graph, "case": self.case, "output": self.output}
        return {**place, **self.comparison.failure()}


def check_outputs(
    graph: str,
    case: str,
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: Mapping[str, Any],
) -> Iterator[OutputCheck]:
    """Yield one check per output; an unmatched output fails."""

    def unmatched(problem: str) -> Comparison:
        return Comparison(float("inf"), float("inf"), None, None, False, problem=problem)

    for output, reference in expected.items():
        found = actual.get(output)
        missing = unmatched("is missing in the graph")
        comparison = missing if found is None else compare(found, reference, tolerance)
        yield OutputCheck(graph, case, output, reference, found, comparison)
    for output in sorted(actual.keys() - expected.keys()):
        extra = unmatched(
            f"is an extra output of the graph: PyTorch returns {len(expected)} outputs"
        )
        yield OutputCheck(graph, case, output, None, actual[output], extra)


def summarize_checks(
    checks: Sequence[OutputCheck],
    golden: Mapping[str, Case],
    tolerance: Mapping[str, Any],
    folder: Path,
) -> tuple[list[OutputCheck], dict[str, Any]]:
    """Return the failed checks and the figures of all.

    The tensors of failed cases are saved in ``folder``.
    """
    failed = failed_checks(checks)
    save_failed_tensors(folder, failed, golden)
    return failed, {
        "cases": compared_cases(checks),
        "tolerance": dict(tolerance),
        "failures": [check.failure() for check in failed],
    }


def failed_checks(checks: Iterable[OutputCheck]) -> list[OutputCheck]:
    """Return the failed checks."""
    return [check for check in checks if not check.comparison.passed]


def compared_cases(checks: Iterable[OutputCheck]) -> ComparedCases:
    """Return case -> output -> figures for a result file."""
    cases: ComparedCases = {}
    for check in checks:
        cases.setdefault(check.case, {})[check.output] = check.comparison.figures()
    return cases


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
