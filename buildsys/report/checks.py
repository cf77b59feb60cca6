"""Numerical comparisons of all stages as one kind of table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from buildsys.manifest.default_limits import AGREEMENT_LIMITS
from buildsys.manifest.shape_cases import format_case, format_dims
from buildsys.onnx_graphs.result_types import CheckFailure, ComparedCases
from buildsys.report.formatting import case_order
from buildsys.report.key_figures import stage_report
from buildsys.report.results.reader import FAILED, PASSED, AnyResult
from buildsys.report.results.report import Check, ComparisonLine, FailureLine
from buildsys.stages.table import SIMPLIFY

_LIMITS = ("rtol", "cosine", "atol", "top1", *AGREEMENT_LIMITS["int8"])


class Compared(NamedTuple):
    """The comparisons of one target."""

    subject: str
    cases: Sequence[tuple[str, ComparedCases]]  # graph, step, precision or profile
    dims: Mapping[str, Mapping[str, int]] = {}  # of each case
    idle: tuple[str, ...] = ()  # optimization profiles without a comparison


def checks_of(results: Iterable[AnyResult]) -> tuple[Check, ...]:
    """List one check per comparing target, in the order of the results."""
    return tuple(
        _check_of(result, compared(result))
        for result in results
        if (compared := stage_report(result.stage, "compared"))
    )


def contradictions(checks: Iterable[Check]) -> Iterator[str]:
    """Yield a sentence for every check contradicted by its own numbers."""
    for check in checks:
        if check.status != PASSED:
            continue
        wrong = next((line for line in check.comparisons if line.passed is False), None)
        if wrong:
            output = f"output {wrong.output} in case {wrong.case}"
            yield f"{check.target} has passed, although {output} is not within the limits"
        elif not check.comparisons and not check.target.startswith(f"{SIMPLIFY}:"):
            yield f"{check.target} has passed without comparing anything"
        for profile in check.idle:
            yield f"{check.target} has passed without comparing anything in {profile}"


def _check_of(result: AnyResult, compared: Compared) -> Check:
    content = result.content
    tolerance = content.get("tolerance", {})
    lines = [line for cases in compared.cases for line in _lines(*cases, compared.dims)]
    return Check(
        target=result.target,
        subject=compared.subject,
        status=result.status,
        limits={name: tolerance[name] for name in _LIMITS if tolerance.get(name) is not None},
        comparisons=tuple(lines) if result.status in (PASSED, FAILED) else (),
        agreement=content.get("agreement", {}),
        failures=tuple(_failure(result, entry) for entry in content.get("failures", [])),
        idle=compared.idle,
    )


def _lines(
    subject: str, cases: ComparedCases, dims: Mapping[str, Mapping[str, int]]
) -> Iterator[ComparisonLine]:
    for case in sorted(cases, key=case_order):
        for output, comparison in cases[case].items():
            # JSON has null for NaN and infinity
            unknown = comparison.get("passed") is False and "relative" in comparison
            not_finite = float("nan") if unknown else None
            max_abs, relative = comparison.get("max_abs"), comparison.get("relative")
            yield ComparisonLine(
                subject=subject,
                case=case,
                output=output,
                max_abs=not_finite if max_abs is None else max_abs,
                relative=not_finite if relative is None else relative,
                cosine=comparison.get("cosine"),
                top1=comparison.get("top1"),
                passed=comparison.get("passed"),
                dims=format_dims(dims.get(case, {})),
                policy=comparison.get("policy", ""),
                note=comparison.get("note", ""),
                uninformative=comparison.get("uninformative", ""),
            )


def _failure(result: AnyResult, entry: CheckFailure) -> FailureLine:
    profile = f", profile {entry['profile']}" if "profile" in entry else ""
    index, actual, expected = entry.get("index"), entry.get("actual"), entry.get("expected")
    return FailureLine(
        subject=(entry.get("graph") or result.variant or result.stage) + profile,
        case=format_case(entry.get("case", ""), entry.get("dims", {})),
        output=entry.get("output", ""),
        index="" if index is None else f"[{', '.join(map(str, index))}]",
        actual="" if actual is None else str(actual),
        expected="" if expected is None else str(expected),
        problem=entry.get("problem", ""),
    )
