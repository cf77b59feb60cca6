"""Report on a failed run and its stale outputs."""

import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from buildsys.cli.session import BuildSession
from buildsys.errors import BuildsysError
from buildsys.execution.freshness import FRESH, explain
from buildsys.execution.run_records import why_stopped
from buildsys.execution.stale_reasons import NEVER_BUILT, UPSTREAM, summarize_reasons
from buildsys.plan.action import Action
from buildsys.report.assemble import NEVER, TargetProblem, assemble_after_failure
from buildsys.report.formatting import first_names, plural
from buildsys.report.markdown import render
from buildsys.report.report_types import Report, as_json, read_report
from buildsys.stages.table import BENCH, ENGINE, REPORT, VERIFY, target_of
from buildsys.store.ledger import FAILED, PASSED, utc_now
from buildsys.workers.job import StageResult
from buildsys.workers.result_file import TARGET_FIELDS, result_text

KEPT = "last_passed"  # stem of the kept report of the last successful run
_FIRST = (ENGINE, REPORT, VERIFY, BENCH)  # what people use from the build folder
_MOST_NAMES = 6
Problems = Mapping[str, TargetProblem]  # targets that are not up to date


@dataclass(frozen=True)
class StaleOutputs:
    """Stale outputs in the folder of one model."""

    model: str
    targets: Sequence[str] = ()  # what people use first
    report: str = ""  # on this failure, relative to the build folder; "" if none was replaced
    problem: str = ""  # an error while looking, or while writing the report

    def describe(self, folder: str) -> str:
        """Format one line on the stale outputs in ``folder``, or ""."""
        if not self.targets:
            return f"{folder}: cannot list stale outputs: {self.problem}" if self.problem else ""
        parts = [(*target.split(":", 2), "")[:3] for target in self.targets]
        names = [f"{stage} {variant}".rstrip() for stage, _, variant in parts]
        outputs = plural(len(names), "output is stale", "outputs are stale")
        text = f"{folder}: {outputs}: {first_names(names, _MOST_NAMES)}"
        return f"{text}; the report could not be updated: {self.problem}" if self.problem else text


def report_failure(session: BuildSession, models: Iterable[str]) -> list[StaleOutputs]:
    """Report the failure of ``models``; return stale outputs and new reports.

    Nothing is raised, as the run has already failed.
    """
    session.checked_stale_outputs = True
    failures = (_report_model(session, model) for model in models)
    return [failure for failure in failures if failure.targets or failure.report or failure.problem]


def _report_model(session: BuildSession, model: str) -> StaleOutputs:
    target, report, problem = target_of(REPORT, model), "", ""
    stale: list[str] = []
    try:
        problems, stale = read_state(session, model)
        if problems:
            outputs = session.actions[target].outputs
            _replace_report(session, session.actions[target])
            path = outputs.get("markdown", outputs["result"]).path
            report = path if (session.project.build / path).is_file() else ""
    except (BuildsysError, OSError) as error:
        # without a report there was none to replace
        problem = " ".join(str(error).split()) if target in stale or not stale else ""
    except Exception as error:  # the border: one line, with the traceback in a file
        return StaleOutputs(model, problem=session.keep_traceback(target, error))
    return StaleOutputs(
        model, [name for name in stale if name != target or not report], report, problem
    )


def read_state(session: BuildSession, model: str) -> tuple[Problems, list[str]]:
    """Read problems, and the targets with stale outputs, what people use first.

    Raises: StageError, OSError: the state cannot be read.
    """
    actions = session.actions.of(model)
    if session.is_read_only:
        checker = session.read_only_checker()
        facts = {target: checker.examine(action) for target, action in actions.items()}
    else:
        facts = {target: session.executor.examine(target) for target in actions}
    explained = explain(facts.values(), {name: action.after for name, action in actions.items()})
    failed: dict[str, TargetProblem] = {}
    for target, fact in facts.items():
        finished = session.finished.get(target)
        upstream = any(reason.kind == UPSTREAM for reason in explained[target].reasons)
        if finished is not None and finished.status == FAILED:
            failed[target] = TargetProblem(finished.reason, failed=True, hint=finished.hint)
        elif fact.failed_with_this_key and fact.failure is not None and not upstream:
            # in an earlier run, with the same inputs
            failed[target] = TargetProblem(fact.failure, failed=True)
    stopped = "interrupted" if session.interrupted else why_stopped(session.finished)
    has_failed = any(end.status == FAILED for end in session.finished.values())
    is_cut = session.is_run and (session.interrupted or has_failed)  # else it was not asked for
    problems: dict[str, TargetProblem] = {}
    for target, state in explained.items():
        needed = [name for name in session.needed([target]) if name in failed]
        if target in failed:
            problems[target] = failed[target]
        elif state.state != FRESH:
            why = f"not run: it needs {', '.join(needed)}" if needed else f"not run: {stopped}"
            if not is_cut and not needed:
                is_new = any(reason.kind == NEVER_BUILT for reason in state.reasons)
                stale = f"not up to date: {summarize_reasons(state.reasons)}"
                why = NEVER if is_new else stale
            problems[target] = TargetProblem(why)
    passed = [name for name in problems if session.result(name).get("status") == PASSED]
    rank = {stage: at for at, stage in enumerate(_FIRST)}
    passed.sort(key=lambda name: rank.get(actions[name].stage, len(rank)))
    return problems, passed


def current_report(session: BuildSession, model: str) -> tuple[Report, bool]:
    """Read a model's report; True if it is the written one.

    One that is not up to date is replaced by the state of all targets, without stale figures.
    """
    action = session.actions[target_of(REPORT, model)]
    finished = session.finished.get(action.target)
    is_current = finished is not None and finished.status == PASSED
    problems = {} if is_current else read_state(session, model)[0]
    path = session.project.build / action.outputs["result"].path
    report = read_report(path) if not problems else None
    if report is not None:
        return replace(report, model=model), True
    notice = "Targets that are not up to date are shown without their figures" if problems else ""
    return _assemble(session, action, problems, notice), False


def _assemble(session: BuildSession, report: Action, problems: Problems, notice: str) -> Report:
    inputs = {
        action.target: session.project.build / action.outputs["result"].path
        for action in session.actions.of(report.model).values()
        if action != report
    }
    manifest = report.options["manifest"]
    return assemble_after_failure(report.model, manifest, inputs, problems, notice)


def _replace_report(session: BuildSession, report: Action) -> None:
    """Replace a model's report; the last successful one is kept next to it.

    Nothing is written if there is no report, or if another run has brought everything up to date.
    Raises: StageError, OSError: the report cannot be written.
    """

    def write() -> tuple[Mapping[str, bytes], str]:
        problems = read_state(session, report.model)[0]
        failed = [target for target, problem in problems.items() if problem.failed]
        reason = "the run stopped before writing the report"
        if failed:
            reason = f"it reports a run in which {first_names(failed, 1)} failed"
        return _files(session, report, problems), reason

    session.executor.replace_by_failure(report.target, write)


def _files(session: BuildSession, report: Action, problems: Problems) -> dict[str, bytes]:
    build = session.project.build
    if not problems or not (build / report.outputs["result"].path).is_file():
        return {}
    files = dict(_last_successful(session, report))
    ended = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    notice = (
        f"This is the report on the run that ended {ended} UTC. Outputs of stale targets are from "
        "an earlier run; they do not match the manifest, and their figures are left out"
    )
    if files:
        names = " and ".join(PurePosixPath(name).name for name in reversed(files))
        notice += f". The report of the last successful run is {names}"
    content = _assemble(session, report, problems, notice)
    result = result_text(
        {name: getattr(report, name) for name in TARGET_FIELDS},
        StageResult(
            FAILED,
            content.verdict.text,
            f"`buildsys explain build:{report.model}` lists what is not up to date, and why",
            as_json(content),
        ),
        started=utc_now(),
        measured={"seconds": 0.0},
        toolchain={"python": platform.python_version()},
    )
    texts = {"result": result, "markdown": render(content)}
    for role, ref in report.outputs.items():
        if role in texts:
            files[ref.path] = texts[role].encode()
        elif (build / ref.path).is_file():  # a picture
            files[ref.path] = (build / ref.path).read_bytes()
    return files


def _last_successful(session: BuildSession, report: Action) -> Iterator[tuple[str, bytes]]:
    """Yield each file of the last successful report, current or already kept."""
    is_current = session.result(report.target).get("status") == PASSED
    for ref in (report.outputs[role] for role in ("result", "markdown") if role in report.outputs):
        copy = str(PurePosixPath(ref.path).with_stem(KEPT))
        path = session.project.build / (ref.path if is_current else copy)
        if path.is_file():
            yield copy, path.read_bytes()
