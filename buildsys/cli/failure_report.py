"""Report on a failed run, in place of the last successful one."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from buildsys.cli.session import Session
from buildsys.execution.freshness import FRESH, explain
from buildsys.execution.stale_reasons import UPSTREAM
from buildsys.plan.action import Action
from buildsys.report.assemble import TargetProblem, assemble_after_failure
from buildsys.report.markdown.document import is_failure_report, render
from buildsys.report.results.report import as_json
from buildsys.store.ledger import FAILED, PASSED, utc_now
from buildsys.workers.job import StageResult
from buildsys.workers.result_file import result_text

KEPT = "last_passed"  # stem of the kept report of the last successful run


@dataclass(frozen=True)
class ModelState:
    """Targets of one model that are not up to date."""

    problems: Mapping[str, TargetProblem]
    stale_since: Mapping[str, str]  # targets with outputs of an earlier run -> its start, ISO


def report_target(model: str) -> str:
    """Return the report target of a model."""
    return f"report:{model}"


def read_state(session: Session, model: str) -> ModelState:
    """Return the state of a model's targets.

    Raises: StageError, OSError: the state cannot be read.
    """
    actions = session.actions.of(model)
    facts = {target: session.executor.examine(target) for target in actions}
    after = {target: action.after for target, action in actions.items()}
    explained = explain(facts.values(), after)
    failed: dict[str, str] = {}
    for target, known in facts.items():
        finished = session.finished.get(target)
        upstream = any(reason.kind == UPSTREAM for reason in explained[target].reasons)
        if finished is not None and finished.status == FAILED:
            failed[target] = finished.reason
        elif known.failed_with_this_key and known.failure is not None and not upstream:
            failed[target] = known.failure  # in an earlier run, with the same inputs
    problems: dict[str, TargetProblem] = {}
    for target in actions:
        if target in failed:
            problems[target] = TargetProblem(failed[target], failed=True)
        elif explained[target].state != FRESH:
            needed = [name for name in session.needed([target]) if name in failed]
            why = f"it needs {', '.join(needed)}" if needed else "the run ended before"
            problems[target] = TargetProblem(f"not run: {why}")
    results = {target: session.result(target) for target in problems}
    stale_since = {
        target: str(result.get("started") or "")
        for target, result in results.items()
        if result.get("status") == PASSED
    }
    return ModelState(problems, stale_since)


def replace_report(session: Session, model: str) -> ModelState:
    """Replace a model's report by one on the failure; return the model's state.

    The last successful report is kept next to it. Nothing is written if there is no report, or if
    another run has brought everything up to date meanwhile.

    Raises: StageError, OSError: the report cannot be written.
    """
    states: list[ModelState] = []

    def write() -> tuple[Mapping[str, bytes], str]:
        states.append(read_state(session, model))
        problems = states[0].problems
        failed = [target for target, problem in problems.items() if problem.failed]
        reason = "the last run stopped before writing the report"
        if failed:
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            reason = f"it reports a run in which {failed[0]}{more} failed"
        return _files(session, model, problems), reason

    session.executor.replace_by_failure(report_target(model), write)
    return states[0]


def _files(session: Session, model: str, problems: Mapping[str, TargetProblem]) -> dict[str, bytes]:
    action, build = session.actions[report_target(model)], session.project.build
    if not problems or not (build / action.outputs["result"].path).is_file():
        return {}
    kept = dict(_last_successful(build, action))
    inputs = {
        one.target: build / one.outputs["result"].path
        for one in session.actions.of(model).values()
        if one != action
    }
    notice = _notice([PurePosixPath(name).name for name in kept])
    manifest = action.options["manifest"]
    report = assemble_after_failure(model, manifest, inputs, problems, notice)
    hint = f"`doit explain build:{model}` lists what is not up to date, and why"
    result = result_text(
        action,
        StageResult(FAILED, report.verdict.text, hint, as_json(report)),
        started=utc_now(),
        measured={"seconds": 0.0},
        toolchain={"python": platform.python_version()},
    )
    texts = {"result": result, "markdown": render(report)}
    return {**kept, **{ref.path: texts[role].encode() for role, ref in action.outputs.items()}}


def _notice(kept: Sequence[str]) -> str:
    ended = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    notice = (
        f"This is the report on the run that ended {ended} UTC. Outputs of stale targets are from "
        "an earlier run; they do not match the manifest, and their figures are left out"
    )
    last = f". The report of the last successful run is {' and '.join(reversed(kept))}"
    return notice + (last if kept else "")


def _last_successful(build: Path, action: Action) -> Iterator[tuple[str, bytes]]:
    """Yield each file of the last successful report, current or already kept.

    They are checked one by one, as a run may have been killed between two files.
    """
    for ref in action.outputs.values():
        path = PurePosixPath(ref.path)
        kept = str(path.with_stem(KEPT))
        content = _read(build / path)
        if content is None or _is_on_failure(path.suffix, content):
            content = _read(build / kept)
        if content is not None:
            yield kept, content


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _is_on_failure(suffix: str, content: bytes) -> bool:
    if suffix != ".json":
        return is_failure_report(content.decode(errors="replace"))
    try:
        found = json.loads(content)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("status") == FAILED
