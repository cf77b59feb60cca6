"""The verdict and one line per target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from buildsys.report import formatting
from buildsys.report.checks import case_order
from buildsys.report.gpu_timing import own_contender
from buildsys.report.result_files import FAILED, PASSED, Result, mapping, number, whole
from buildsys.report.results.report import Comparison, TargetLine, Verdict

_MOST_NAMES = 4
_MARK = {
    "passed": "passed",
    "failed": "FAILED",
    "unavailable": "not run",
    "absent": "no result",
    "stale": "stale",
}


def status_word(status: str) -> str:
    """Return how a status is written for people: what could not run is never called anything better."""
    return _MARK.get(status, status)


def verdict_of(results: Sequence[Result], contradictions: Sequence[str]) -> Verdict:
    """Return the verdict over all results; only if every one of them passed is it ``passed``."""
    failed = [result for result in results if result.status == FAILED]
    missing = [result for result in results if result.status not in (FAILED, PASSED)]
    passed = len(results) - len(failed) - len(missing)
    if failed or contradictions:
        causes = [f"{result.target}: {result.reason or 'failed'}" for result in failed] + list(
            contradictions
        )
        more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
        return Verdict("failed", f"FAILED: {causes[0]}{more}")
    if missing:
        names = ", ".join(result.target for result in missing[:_MOST_NAMES])
        names += f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
        counted = f"{passed} of {len(results)} targets ran and passed"
        return Verdict("partial", f"PARTIAL: {counted}; {len(missing)} did not run here: {names}")
    if not results:
        return Verdict("partial", "PARTIAL: there are no results to report on")
    return Verdict("passed", f"PASSED: all {len(results)} targets ran and passed")


def target_line(result: Result, comparisons: Iterable[Comparison]) -> TargetLine:
    """Return the line of one target: its status and the figure that matters most."""
    outcome = "; ".join(
        filter(None, (_OUTCOMES.get(result.stage, _nothing)(result), _worst(comparisons)))
    )
    return TargetLine(
        target=result.target,
        stage=result.stage,
        variant=result.variant,
        status=result.status,
        seconds=result.seconds,
        outcome=outcome if result.status in (PASSED, FAILED) else "",
        reason=result.reason,
        hint=result.hint,
        file=result.file,
        log=result.log,
    )


def _worst(comparisons: Iterable[Comparison]) -> str:
    """Return the largest relative error, where NaN (any comparison with it is false) is the worst of all."""
    found = [line for line in comparisons if line.relative is not None]
    if not found:
        return ""
    worst = max(found, key=lambda line: (line.relative != line.relative, line.relative or 0.0))
    return f"worst relative error {formatting.error(worst.relative)} ({worst.output}, {worst.case})"


def _nothing(_: Result) -> str:
    return ""


def _export(result: Result) -> str:
    figures = result.figures
    nodes, opset = (
        formatting.nodes(whole(figures.get("nodes"))),
        figures.get("opset", formatting.NOTHING),
    )
    return f"{nodes}, opset {opset}, {formatting.size(number(figures.get('bytes')))}"


def _reference(result: Result) -> str:
    cases = sorted(mapping(result.figures.get("cases")), key=case_order)
    return f"{'case' if len(cases) == 1 else 'cases'} {', '.join(cases) or 'none'}"


def _simplify(result: Result) -> str:
    before, after = (
        whole(mapping(result.figures.get(when)).get("nodes")) for when in ("before", "after")
    )
    return f"{formatting.count(before)} → {formatting.nodes(after)}"


def _surgery(result: Result) -> str:
    steps = result.figures.get("steps")
    count = len(steps) if isinstance(steps, list) else 0
    return f"{count} step{'s' * (count != 1)}, {_simplify(result)}"


def _convert(result: Result) -> str:
    before, after = (
        formatting.size(number(result.figures.get(f"bytes_{when}"))) for when in ("before", "after")
    )
    return f"{before} → {after}"


def _engine(result: Result) -> str:
    built = formatting.duration(number(result.figures.get("build_seconds")))
    return f"{formatting.size(number(result.figures.get('engine_bytes')))}, built in {built}"


def _bench(result: Result) -> str:
    cases = mapping(result.figures.get("cases"))
    return "; ".join(_p50(case, mapping(cases[case])) for case in sorted(cases, key=case_order))


def _p50(case: str, figures: Mapping[str, object]) -> str:
    contenders = mapping(figures.get("contenders"))
    own = mapping(contenders.get(own_contender(contenders)))
    return f"{case}: p50 {formatting.significant(number(own.get('p50_ms')))} ms"


_OUTCOMES: dict[str, Callable[[Result], str]] = {
    "operators": lambda result: formatting.operator_parts(result.figures),
    "export": _export,
    "reference": _reference,
    "surgery": _surgery,
    "simplify": _simplify,
    "calibrate": lambda result: formatting.calibration(result.figures),
    "convert": _convert,
    "engine": _engine,
    "bench": _bench,
}
