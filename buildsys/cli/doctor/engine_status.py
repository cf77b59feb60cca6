"""Whether an engine of the project is what its manifest asks for now, and has passed its checks as it is."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.cli.session import Session
from buildsys.cli.targets import explanations
from buildsys.execution.freshness import FRESH, Explanation
from buildsys.execution.stale_reasons import FAILED, summarize_reasons
from buildsys.plan.action import Action
from buildsys.store.ledger import UNAVAILABLE

Reason = dict[str, str]  # as the doctor tells them: kind, problem, remedy

KINDS = STALE, CHECK = "stale", "check"  # of reasons
_SHOWN = 2


def shortfalls(session: Session, engine: Action) -> list[Reason]:
    """Return why an engine that lies there is not to be deployed, nothing where it is current and has passed.

    Nothing is built or written. Raises: ManifestErrors: the manifests are wrong.
    """
    checks = [f"validate:{engine.model}", f"verify:{engine.model}:{engine.variant}"]
    found = explanations(session, [engine.target, *checks])
    return [
        *_stale(found[engine.target]),
        *(reason for check in checks for reason in _unpassed(found[check])),
    ]


def _stale(engine: Explanation) -> Iterator[Reason]:
    if engine.state != FRESH:
        problem = f"{engine.target} is not what the manifest asks for now: {summarize_reasons(engine.reasons, _SHOWN)}"
        yield _reason(STALE, problem, engine.target)


def _unpassed(check: Explanation) -> Iterator[Reason]:
    told = summarize_reasons(check.reasons, _SHOWN)
    if check.state == FRESH:
        if check.last is not None and check.last.status == UNAVAILABLE:
            yield _reason(
                CHECK, f"{check.target} could not run here: {check.last.reason}", check.target
            )
    elif any(reason.kind == FAILED for reason in check.reasons):
        yield _reason(CHECK, f"{check.target} has not passed: {told}", check.target)
    else:
        yield _reason(
            CHECK, f"{check.target} has not run on what there is now: {told}", check.target
        )


def _reason(kind: str, problem: str, target: str) -> Reason:
    return {"kind": kind, "problem": problem, "remedy": f"doit {target}"}
