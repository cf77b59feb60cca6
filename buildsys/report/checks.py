"""Numerical comparisons of all stages as one kind of table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from buildsys.report.results.header import CheckFailure, ComparedCases
from buildsys.report.results.reader import FAILED, PASSED, AnyResult, Result
from buildsys.report.results.report import Check, ComparisonLine, FailureLine
from buildsys.report.results.verify import VerifyResult

_CASES = ("min", "opt", "max", "odd")
_COMPARING = ("surgery", "simplify", "convert", "validate", "verify")  # stages
_NO_DIMS: Mapping[str, Mapping[str, int]] = {}
_LIMITS = ("rtol", "cosine", "atol", "top1")


def case_order(case: str) -> tuple[int, str]:
    """Return a sort key with min, opt, max and odd first."""
    return (_CASES.index(case) if case in _CASES else len(_CASES), case)


def dims_text(dims: Mapping[str, int]) -> str:
    """Return sizes as ``batch 8, length 128``."""
    return ", ".join(f"{name} {size}" for name, size in dims.items())


def checks_of(results: Iterable[AnyResult]) -> tuple[Check, ...]:
    """Return one check per comparing target, in the order of the results."""
    return tuple(_check_of(result) for result in results if result.stage in _COMPARING)


def contradictions(checks: Iterable[Check]) -> Iterator[str]:
    """Yield a sentence for every check contradicted by its own numbers."""
    for check in checks:
        if check.status != PASSED:
            continue
        wrong = next((line for line in check.comparisons if line.passed is False), None)
        if wrong:
            output = f"output {wrong.output} in case {wrong.case}"
            yield f"{check.target} has passed, although {output} is not within the limits"
        elif not check.comparisons and not check.target.startswith("simplify:"):
            yield f"{check.target} has passed without comparing anything"
        for profile in check.idle:
            yield f"{check.target} has passed without comparing anything in {profile}"


def _check_of(result: AnyResult) -> Check:
    content, variant = result.content, result.variant
    if result.stage == "verify":
        return _verify(result)
    if result.stage == "simplify":
        subject = "exported graph against simplified graph"
        compared = [("simplified against exported", content.get("equal", {}))]
    elif result.stage == "surgery":
        subject = "graph before each step, or its reference, against the graph after it"
        steps = content.get("steps", [])
        compared = [(step.get("step", ""), step.get("cases", {})) for step in steps]
    elif result.stage == "convert":
        subject = f"golden outputs against the rounded {variant} graph"
        compared = [(variant, content.get("cases", {}))]
    else:
        subject = "PyTorch against ONNX Runtime"
        compared = list(content.get("graphs", {}).items())
    return _check(result, subject, [line for one in compared for line in _lines(*one)])


def _verify(result: Result[VerifyResult]) -> Check:
    subject = f"golden outputs against engine {result.variant}"
    content, variant = result.content, result.variant
    dims, profiles = content.get("dims", {}), content.get("profiles", [])
    if len(profiles) <= 1:
        return _check(result, subject, _lines(variant, content.get("cases", {}), dims))
    by_profile = {f"profile {entry.get('profile')}": entry.get("cases", {}) for entry in profiles}
    lines = [
        line
        for name, cases in by_profile.items()
        for line in _lines(f"{variant}, {name}", cases, dims)
    ]
    idle = tuple(name for name, cases in by_profile.items() if not cases)
    return replace(_check(result, subject, lines), idle=idle)


def _check(result: AnyResult, subject: str, lines: Iterable[ComparisonLine]) -> Check:
    tolerance = result.content.get("tolerance", {})
    return Check(
        target=result.target,
        subject=subject,
        status=result.status,
        limits={name: tolerance[name] for name in _LIMITS if tolerance.get(name) is not None},
        comparisons=tuple(lines) if result.status in (PASSED, FAILED) else (),
        failures=tuple(_failure(result, entry) for entry in result.content.get("failures", [])),
    )


def _lines(
    subject: str, cases: ComparedCases, dims: Mapping[str, Mapping[str, int]] = _NO_DIMS
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
                dims=dims_text(dims.get(case, {})),
            )


def _failure(result: AnyResult, entry: CheckFailure) -> FailureLine:
    profile = f", profile {entry['profile']}" if "profile" in entry else ""
    case, sizes = entry.get("case", ""), dims_text(entry.get("dims", {}))
    index, actual, expected = entry.get("index"), entry.get("actual"), entry.get("expected")
    return FailureLine(
        subject=(entry.get("graph") or result.variant or result.stage) + profile,
        case=case + (f" ({sizes})" if sizes and "=" not in case else ""),
        output=entry.get("output", ""),
        index="" if index is None else f"[{', '.join(map(str, index))}]",
        actual="" if actual is None else str(actual),
        expected="" if expected is None else str(expected),
        problem=entry.get("problem", ""),
    )
