"""Which targets of a model are as the manifest asks for now, which are not and why, and what is left of those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from buildsys.cli.session import Session
from buildsys.execution.freshness import FRESH, Explanation, Freshness, explain
from buildsys.execution.stale_reasons import UPSTREAM
from buildsys.report.assemble import TargetProblem
from buildsys.report.results.reader import FAILED, PASSED


@dataclass(frozen=True)
class Present:
    """The targets of one model at one moment."""

    short: Mapping[str, TargetProblem]  # those that are not up to date
    left: Mapping[
        str, str
    ]  # those among them whose outputs of an earlier pass lie there -> when it began, ISO


def look_at(session: Session, model: str) -> Present:
    """Return how the targets of a model stand. Raises: StageError, OSError: that cannot be told."""
    actions = session.actions.of(model)
    checked = {target: session.executor.examine(target) for target in actions}
    after = {target: action.after for target, action in actions.items()}
    explained = explain(checked.values(), after)
    failed = {
        name: told
        for name in actions
        if (told := _failure(session, checked[name], explained[name])) is not None
    }
    short = {
        name: TargetProblem(failed[name], failed=True)
        if name in failed
        else TargetProblem(_why_not(session, name, failed))
        for name in actions
        if name in failed or explained[name].state != FRESH
    }
    return Present(short, dict(_left(session, short)))


def _failure(session: Session, found: Freshness, explained: Explanation) -> str | None:
    """Return why a target failed in this run, or in an earlier one on the same inputs; None: it did not."""
    finished = session.finished.get(found.target)
    if finished is not None and finished.status == FAILED:
        return finished.reason
    behind = any(reason.kind == UPSTREAM for reason in explained.reasons)
    return found.failure if found.failed_with_this_key and not behind else None


def _why_not(session: Session, target: str, failed: Mapping[str, str]) -> str:
    needed = [name for name in session.needed([target]) if name in failed]
    return f"not run: it needs {', '.join(needed)}" if needed else "not run: the run ended before"


def _left(session: Session, short: Mapping[str, TargetProblem]) -> Iterator[tuple[str, str]]:
    for target in short:
        result: Mapping[str, Any] = session.result(target)
        if result.get("status") == PASSED:
            yield target, str(result.get("started") or "")
