"""The report of a model in which a target failed or could not run: it takes the place of that of the last pass."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from buildsys.cli.failures.model_status import Present, look_at
from buildsys.cli.session import Session
from buildsys.plan.action import Action
from buildsys.report.assemble import TargetProblem, assemble_after_failure
from buildsys.report.markdown.document import is_failure_report, render
from buildsys.report.results.report import Report, as_json
from buildsys.store.ledger import FAILED, utc_now
from buildsys.workers.job import StageResult
from buildsys.workers.result_file import result_text

KEPT = "last_passed"  # the name, without its ending, of the report of the last pass


def report_target(model: str) -> str:
    """Return the target that reports on a model."""
    return f"report:{model}"


def put_in_place(session: Session, model: str) -> Present:
    """Let a report that lies there give way to one on the failure, and return how the targets stood before that.

    The report of the last pass stays beside it. Where there is none, or another run has brought all up to date
    meanwhile, nothing is written. Raises: StageError, OSError: it could not be written.
    """
    seen: list[Present] = []

    def write() -> tuple[Mapping[str, bytes], str]:
        seen.append(look_at(session, model))
        return _files(session, model, seen[0].short), _reason(seen[0].short)

    session.executor.replace_by_failure(report_target(model), write)
    return seen[0]


def _reason(short: Mapping[str, TargetProblem]) -> str:
    failed = [name for name, why in short.items() if why.failed]
    if not failed:
        return "it tells of a run that did not come to it"
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"it tells of a run in which {failed[0]}{more} failed"


def _files(session: Session, model: str, short: Mapping[str, TargetProblem]) -> dict[str, bytes]:
    action, build = session.actions[report_target(model)], session.project.build
    if not short or not (build / action.outputs["result"].path).is_file():
        return {}
    kept = dict(_kept(build, action))
    report = _report(session, action, short, kept=[PurePosixPath(name).name for name in kept])
    told = {"result": _json(action, report), "markdown": render(report)}
    return {**kept, **{ref.path: told[role].encode() for role, ref in action.outputs.items()}}


def _report(
    session: Session, action: Action, short: Mapping[str, TargetProblem], *, kept: Sequence[str]
) -> Report:
    targets = session.actions.of(action.model).values()
    inputs = {
        one.target: session.project.build / one.outputs["result"].path
        for one in targets
        if one != action
    }
    ended = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    notice = (
        f"This tells of the run that ended {ended} UTC. Files of stale targets are of an earlier pass: they are "
        "not what the manifest asks for now, and nothing of them is told here"
    )
    notice += f". The report of the last pass is {' and '.join(reversed(kept))}" if kept else ""
    return assemble_after_failure(action.model, action.options["manifest"], inputs, short, notice)


def _json(action: Action, report: Report) -> str:
    hint = f"`doit explain build:{action.model}` tells what is not up to date, and why"
    return result_text(
        action,
        StageResult(FAILED, report.verdict.text, hint, as_json(report)),
        started=utc_now(),
        measured={"seconds": 0.0},
        toolchain={"python": platform.python_version()},
    )


def _kept(build: Path, action: Action) -> Iterator[tuple[str, bytes]]:
    """Yield the report of the last pass, each file from where it is: a run may have been killed in between."""
    for ref in action.outputs.values():
        path = PurePosixPath(ref.path)
        kept = str(path.with_stem(KEPT))
        content = _content(build / path)
        if content is None or _tells_of_a_failure(path.suffix, content):
            content = _content(build / kept)
        if content is not None:
            yield kept, content


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _tells_of_a_failure(suffix: str, content: bytes) -> bool:
    if suffix != ".json":
        return is_failure_report(content.decode(errors="replace"))
    try:
        found = json.loads(content)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("status") == FAILED
