"""The verdict on a build, and one line per target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from buildsys.report import formatting
from buildsys.report.key_figures import key_figure
from buildsys.report.results.reader import FAILED, PASSED, AnyResult
from buildsys.report.results.report import BuildVerdict, ComparisonLine, TargetLine

_MOST_NAMES = 4
_STATUS_TEXTS = {"failed": "FAILED", "unavailable": "not run", "absent": "no result"}


def status_text(status: str) -> str:
    """Return a status for people; only passed targets are called so."""
    return _STATUS_TEXTS.get(status, status)


def verdict_of(results: Sequence[AnyResult], contradictions: Sequence[str]) -> BuildVerdict:
    """Return the verdict: ``passed`` only if all results passed."""
    failed = [result for result in results if result.status == FAILED]
    missing = [result.target for result in results if result.status not in (FAILED, PASSED)]
    passed = len(results) - len(failed) - len(missing)
    causes = [f"{result.target}: {result.reason or 'failed'}" for result in failed]
    causes += contradictions
    if causes:
        more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
        return BuildVerdict("failed", f"FAILED: {causes[0]}{more}")
    if missing:
        names = ", ".join(missing[:_MOST_NAMES])
        names += f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
        counted = f"{passed} of {len(results)} targets passed"
        return BuildVerdict("partial", f"PARTIAL: {counted}; {len(missing)} did not run: {names}")
    if not results:
        return BuildVerdict("partial", "PARTIAL: there are no results to report")
    return BuildVerdict("passed", f"PASSED: all {len(results)} targets passed")


def target_line(result: AnyResult, comparisons: Iterable[ComparisonLine]) -> TargetLine:
    """Return one target's line with key figure and worst error."""
    outcome = key_figure(result.stage, result.content)
    if result.stage not in ("validate", "verify"):  # their key figure
        outcome = "; ".join(filter(None, (outcome, _worst(comparisons))))
    return TargetLine(
        target=result.target,
        stage=result.stage,
        variant=result.variant,
        status=result.status,
        seconds=result.content.get("seconds"),
        outcome=outcome if result.status in (PASSED, FAILED) else "",
        reason=result.reason,
        hint=result.hint,
        file=result.file,
        log=result.log,
    )


def _worst(comparisons: Iterable[ComparisonLine]) -> str:
    found = [line for line in comparisons if line.relative is not None]
    if not found:
        return ""
    # any comparison with NaN is false, so it is put last by hand
    worst = max(found, key=lambda line: (line.relative != line.relative, line.relative or 0.0))
    return f"worst relative error {formatting.error(worst.relative)} ({worst.case} {worst.output})"
