"""The numerical comparisons of simplify, convert, validate and verify as one kind of table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from buildsys.report.result_files import FAILED, PASSED, Result, mapping, number, whole
from buildsys.report.results.report import Check, Comparison, Failure

_CASES = ("min", "opt", "max", "odd")
_LIMITS = ("rtol", "cosine", "atol", "top1")
_SEVERAL = 2


def checks_of(results: Iterable[Result]) -> tuple[Check, ...]:
    """Return one check per target that compares numbers, in the order of the chain."""
    return tuple(_READERS[result.stage](result) for result in results if result.stage in _READERS)


def contradictions(checks: Iterable[Check]) -> Iterator[str]:
    """Yield a sentence for every check whose status says more than its figures do."""
    for check in checks:
        if check.status != PASSED:
            continue
        wrong = [line for line in check.comparisons if line.passed is False]
        if wrong:
            line = wrong[0]
            yield f"{check.target} says passed, but output {line.output} in case {line.case} did not pass"
        elif not check.comparisons and not check.target.startswith("simplify:"):
            yield f"{check.target} says passed, but it compared nothing"
        for profile in check.idle:
            yield f"{check.target} says passed, but it compared nothing in {profile}"


def case_order(case: str) -> tuple[int, str]:
    """Return a sort key that puts min, opt, max and odd first."""
    return (_CASES.index(case) if case in _CASES else len(_CASES), case)


def _simplify(result: Result) -> Check:
    rows = _rows("simplified against exported", mapping(result.figures.get("equal")))
    return _check(result, "exported graph against simplified graph", rows)


def _surgery(result: Result) -> Check:
    steps = result.figures.get("steps")
    rows = [
        row
        for figures in map(mapping, steps if isinstance(steps, list) else [])
        for row in _rows(str(figures.get("step")), mapping(figures.get("cases")))
    ]
    return _check(
        result, "the graph before each step, or its reference, against the graph after it", rows
    )


def _convert(result: Result) -> Check:
    rows = _rows(result.variant, mapping(result.figures.get("cases")))
    return _check(
        result, f"golden outputs against the {result.variant} graph with its rounding", rows
    )


def _validate(result: Result) -> Check:
    graphs = mapping(result.figures.get("graphs"))
    rows = [row for graph, cases in graphs.items() for row in _rows(str(graph), mapping(cases))]
    return _check(result, "PyTorch against ONNX Runtime", rows)


def _verify(result: Result) -> Check:
    subject, dims = (
        f"golden outputs against engine {result.variant}",
        mapping(result.figures.get("dims")),
    )
    profiles = result.figures.get("profiles")
    found = [mapping(entry) for entry in profiles] if isinstance(profiles, list) else []
    if len(found) < _SEVERAL:
        return _check(
            result, subject, _rows(result.variant, mapping(result.figures.get("cases")), dims)
        )
    by_profile = {
        f"profile {whole(entry.get('profile'))}": mapping(entry.get("cases")) for entry in found
    }
    rows = [
        row
        for name, cases in by_profile.items()
        for row in _rows(f"{result.variant}, {name}", cases, dims)
    ]
    return replace(
        _check(result, subject, rows),
        idle=tuple(name for name, cases in by_profile.items() if not cases),
    )


_READERS = {
    "surgery": _surgery,
    "simplify": _simplify,
    "convert": _convert,
    "validate": _validate,
    "verify": _verify,
}


def _check(result: Result, subject: str, rows: Iterable[Comparison]) -> Check:
    tolerance = mapping(result.figures.get("tolerance"))
    limits = {name: value for name in _LIMITS if (value := number(tolerance.get(name))) is not None}
    return Check(
        target=result.target,
        subject=subject,
        status=result.status,
        limits=limits,
        comparisons=tuple(rows) if result.status in (PASSED, FAILED) else (),
        failures=tuple(_failures(result)),
    )


def _rows(
    subject: str, cases: Mapping[str, Any], dims: Mapping[str, Any] | None = None
) -> list[Comparison]:
    sizes = dims or {}
    return [
        replace(
            _comparison(subject, case, str(output), mapping(figures)),
            dims=_sizes(mapping(sizes.get(case))),
        )
        for case in sorted(cases, key=case_order)
        for output, figures in mapping(cases[case]).items()
    ]


def _sizes(dims: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {size}" for name, size in dims.items())


def _comparison(subject: str, case: str, output: str, figures: Mapping[str, Any]) -> Comparison:
    passed = figures.get("passed")
    not_finite = (
        float("nan") if passed is False and "relative" in figures else None
    )  # JSON has null for it
    max_abs, relative = (number(figures.get(key)) for key in ("max_abs", "relative"))
    return Comparison(
        subject=subject,
        case=case,
        output=output,
        max_abs=not_finite if max_abs is None else max_abs,
        relative=not_finite if relative is None else relative,
        cosine=number(figures.get("cosine")),
        top1=number(figures.get("top1")),
        passed=passed if isinstance(passed, bool) else None,
    )


def _failures(result: Result) -> Iterator[Failure]:
    found = result.figures.get("failures")
    for entry in found if isinstance(found, list) else []:
        failure = mapping(entry)
        profile = f", profile {failure['profile']}" if "profile" in failure else ""
        case, sizes = _text(failure.get("case")), _sizes(mapping(failure.get("dims")))
        yield Failure(
            subject=str(failure.get("graph") or result.variant or result.stage) + profile,
            case=case + (f" ({sizes})" if sizes and "=" not in case else ""),
            **{
                key: _text(failure.get(key))
                for key in ("output", "index", "actual", "expected", "problem")
            },
        )


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(str(part) for part in value) + "]"
    return "" if value is None else str(value)
