"""The one next step after the checks of doit doctor."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from buildsys.cli.commands.doctor.machine import BROKEN, MISSING, Finding
from buildsys.cli.session import Session
from buildsys.errors import BuildsysError
from buildsys.execution.freshness import FRESH
from buildsys.execution.stale_reasons import FAILED
from buildsys.project.plan import model_of


def next_step(root: Path, checks: Sequence[Finding]) -> str:
    """Describe what to do first: a repair, a build, an installation, or nothing."""
    broken = [check for check in checks if check.state == BROKEN]
    missing = [finding.facts["requirement"] for finding in broken if "requirement" in finding.facts]
    if len(missing) > 1:  # in one command
        return f"{sys.executable} -m pip install {' '.join(missing)}"
    if broken:
        return next((check.remedy for check in broken if check.remedy), broken[0].text)
    return _build(root) or next(
        (check.remedy for check in checks if check.state == MISSING and check.is_next_step),
        "nothing, everything is up to date",
    )


def _build(root: Path) -> str:
    """Find the command to build or explain stale targets, "" without any."""
    try:
        session = Session.read_only(root)
        models = list(session.project.models)
        if not models:
            return "buildsys new MODEL --from SOURCE"
        explained = session.explain(session.actions).values()
    except (BuildsysError, OSError) as error:
        return f"buildsys plan, which ends with: {error}"
    stale = [explanation for explanation in explained if explanation.state != FRESH]
    if not stale:
        return ""
    for explanation in stale:
        if any(reason.kind == FAILED for reason in explanation.reasons):
            return f"buildsys explain build:{model_of(explanation.target)}"
    waiting = dict.fromkeys(model_of(explanation.target) for explanation in stale)
    never_built = len(waiting) == len(models) and all(
        explanation.last is None for explanation in stale
    )
    if len(waiting) == 1 or never_built:
        return f"buildsys build {next(iter(waiting))}"
    return "buildsys build"
