"""The report on a run that did not get through: what failed, and nothing of what is left from an earlier pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from buildsys.report.assemble import assemble_results
from buildsys.report.result_files import ABSENT, FAILED, PASSED, STALE, Result, read_results
from buildsys.report.results.report import Report, Verdict


@dataclass(frozen=True)
class Shortfall:
    """Why a target's result file is not, or not all of, what there is to tell of it."""

    reason: str
    failed: bool = False  # else it was not run


def report_failure(
    model: str,
    manifest: Mapping[str, Any],
    inputs: Mapping[str, Path],
    short: Mapping[str, Shortfall],
    notice: str,
) -> Report:
    """Return the report on the present state: figures of earlier passes, which are not of it, are left out.

    ``inputs`` are the result files of all targets, ``short`` the targets that are not as the manifest asks for.
    """
    results = [_present(result, short.get(result.target)) for result in read_results(inputs)]
    report = assemble_results(model, manifest, results, {})
    return replace(report, verdict=_verdict(report.verdict, short, len(results) + 1), notice=notice)


def _present(result: Result, short: Shortfall | None) -> Result:
    if short is None or (
        short.failed and result.status == FAILED
    ):  # a failed check has published its figures
        return result
    status = FAILED if short.failed else STALE if result.status == PASSED else ABSENT
    reason, _, hint = short.reason.partition("\n")
    return Result(
        result.target, result.stage, result.variant, status, reason, hint, file=result.file
    )


def _verdict(found: Verdict, short: Mapping[str, Shortfall], targets: int) -> Verdict:
    if found.status == FAILED:
        return found
    for target, one in short.items():
        if one.failed:  # the report itself
            return Verdict(FAILED, f"FAILED: {target}: {one.reason}")
    return Verdict(STALE, f"STALE: {len(short)} of {targets} targets were not brought up to date")
