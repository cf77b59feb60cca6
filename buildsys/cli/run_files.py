"""Files for CI systems about a run: JUnit XML and Markdown."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from buildsys.cli.command import INTERRUPTED
from buildsys.cli.console.rows import Row, print_rows
from buildsys.cli.project_root import shown_path
from buildsys.cli.session import BuildSession
from buildsys.errors import BuildsysError, StageError, UsageError, with_hint
from buildsys.execution.run_records import why_stopped
from buildsys.execution.stale_reasons import decode_reasons, summarize_reasons
from buildsys.report import run_results as ends
from buildsys.report.formatting import first_names, plural
from buildsys.report.key_figures import key_figure
from buildsys.report.run_reports import junit_xml, outcome, run_summary
from buildsys.report.run_results import BrokenManifest, RunResults, TargetResult, regression
from buildsys.stages.table import GATE
from buildsys.system.files import replace_file

_RECENT_RUNS = 20
_MOST_REASONS = 2
_MOST_LINES = 30  # lines per kind at the end of the output
_MOST_NAMES = 5  # on one line


class RunFiles:
    """The files about a run, written at its begin and again at its end."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        title: str = "Build",
        document: Callable[[RunResults, int | None], Mapping[str, Any]] | None = None,
    ) -> None:
        """Prepare files by kind: junit, summary, results or json.

        ``document`` makes the JSON of a nightly run, which must reach all targets.
        """
        self._paths = paths
        self._title = title
        self._document = document

    @contextmanager
    def begin(self, started: str) -> Iterator[None]:
        """Replace files of earlier runs, and again if the run is refused or interrupted.

        Raises: UsageError: a file cannot be written; nobody would learn how the run ended.
        """
        killed = f"the run has not finished; if process {os.getpid()} is gone, it was killed"
        try:
            self._write_unfinished(started, ends.RUNNING, killed, None)
        except StageError as error:
            raise UsageError(error.problem, "name another file, or correct its folder") from None
        try:
            yield
        except BuildsysError as error:
            self._write_unfinished(started, ends.REFUSED, str(error), error.exit_code)
            raise
        except KeyboardInterrupt:
            problem = "interrupted before the first target"
            self._write_unfinished(started, ends.INTERRUPTED, problem, INTERRUPTED)
            raise

    def _write_unfinished(self, started: str, status: str, error: str, code: int | None) -> None:
        host = socket.gethostname()
        self.write(RunResults(started, 0.0, host, status=status, error=error), code)

    def write(self, run: RunResults, exit_code: int | None) -> None:
        """Write all files. Raises: StageError: one cannot be written."""
        is_strict = self._document is not None
        document = self._document(run, exit_code) if self._document else {}
        contents = {
            "junit": lambda: junit_xml(run, strict=is_strict),
            "summary": lambda: run_summary(run, self._title).encode(),
            "json": lambda: (json.dumps(document, indent=2) + "\n").encode(),
            "results": lambda: json.dumps(asdict(run)).encode(),
        }
        problem = ""
        for kind, path in self._paths.items():
            try:
                replace_file(path, contents[kind]())
            except OSError as error:
                problem = problem or f"cannot write {shown_path(path)}: {error.strerror}"
        if problem:
            raise StageError(problem, "the targets are built: run it again")


def collect_results(session: BuildSession, started: str) -> RunResults:
    """Collect the results of the run begun at ``started``."""
    ignored = session.ignored()
    is_interrupted = bool(session.interrupted)
    return RunResults(
        started=started,
        seconds=session.seconds or time.monotonic() - session.began,
        host=socket.gethostname(),
        status=ends.INTERRUPTED if is_interrupted else ends.FINISHED,
        error="interrupted; finished targets are kept" if is_interrupted else "",
        targets=tuple(
            _result(session, target, ignored, started)
            for target in session.in_order(session.requested)
        ),
        manifests=tuple(broken_manifests(session)),
    )


def results_document(results: RunResults, exit_code: int | None) -> dict[str, Any]:
    """Make the JSON of a run, without the schema."""
    return {
        "status": results.status,
        "outcome": outcome(results),
        "exit_code": exit_code,
        "error": results.error,
        "started": results.started,
        "seconds": round(results.seconds, 3),
        "host": results.host,
        "counts": {status: results.count(status) for status in ends.STATUSES},
        "failed": [target.target for target in results.failed],
        "regressed": [target.target for target in results.regressed],
        "never_ran": [target.target for target in results.never_ran],
        "flaky": [target.target for target in results.flaky],
        "manifests": [asdict(manifest) for manifest in results.manifests],
        "targets": [asdict(target) for target in results.targets],
    }


def broken_manifests(session: BuildSession) -> Iterator[BrokenManifest]:
    """Yield the manifests left out of the project."""
    for file, errors in session.project.broken.items():
        yield BrokenManifest(file, tuple(dict.fromkeys(map(str, errors))))


def _result(
    session: BuildSession, target: str, ignored: Collection[str], since: str
) -> TargetResult:
    """Make the result of one target, from this run and from the ledger."""
    action, log = session.actions[target], session.log(target)
    end = session.finished.get(target)
    has_log = end is not None and not end.waited and log.is_file()
    return TargetResult(
        target=target,
        model=action.model,
        stage=action.stage,
        variant=action.variant,
        owner=session.project.models[action.model].data["owner"],
        log=os.path.relpath(log, session.project.root) if has_log else "",
        first_failure=session.first_failures.get(target, ""),
        **_end(session, target, ignored, since),
    )


def _end(
    session: BuildSession, target: str, ignored: Collection[str], since: str
) -> dict[str, Any]:
    stage, end = session.actions[target].stage, session.finished.get(target)
    try:
        runs = session.executor.ledger.history(target, _RECENT_RUNS)
    except (BuildsysError, OSError):  # a locked or damaged state: the run reports it
        runs = []
    steady = [(run.status, run.started) for run in runs if run.status != ends.NOISY]
    last_passed, regressed = regression(steady, since)
    history = {"regressed": regressed, "last_passed": last_passed}
    if shortfall := session.shortfall(target):
        reason = with_hint(end.reason, end.hint) if end else session.recorded_reason(target)
        seconds = end.seconds if end and not (end.waited or end.restored) else 0.0
        history = history if shortfall == ends.UNAVAILABLE else {}
        return {"status": shortfall, "reason": reason, "seconds": seconds, **history}
    if end is None:
        is_fresh = target in session.fresh
        return {"status": ends.UP_TO_DATE} if is_fresh else _not_run(session, target, ignored)
    if end.waited:
        return {"status": ends.UP_TO_DATE, "reason": "built by another run meanwhile"}
    if end.status == ends.FAILED:
        return {
            **history,
            "status": ends.FAILED,
            "reason": with_hint(end.reason, end.hint),
            "error": end.error,
            "seconds": end.seconds,
            "regressed": regressed or stage == GATE,
        }
    return {
        "status": ends.RESTORED if end.restored else ends.PASSED,
        "figure": key_figure(stage, session.result(target)),
        "why": summarize_reasons(decode_reasons(runs[0].why), _MOST_REASONS) if runs else "",
        "seconds": 0.0 if end.restored else end.seconds,
    }


def _not_run(session: BuildSession, target: str, ignored: Collection[str]) -> dict[str, Any]:
    """Explain a stale target without a run."""
    needed = [target, *session.needed([target])]
    if mark := next((name for name in needed if name in ignored), ""):
        what = "excluded" if mark == target else f"needs {mark}, which is excluded"
        reason = f"{what} by `doit ignore`; `doit forget {mark}` includes it"
        return {"status": ends.IGNORED, "reason": reason}
    ended = [session.finished[name] for name in needed if name in session.finished]
    reason = "interrupted" if session.interrupted else why_stopped(session.finished)
    if failed := [end.target for end in ended if end.status == ends.FAILED]:
        reason = f"needs {failed[0]}, which failed"
    return {"status": ends.NOT_RUN, "reason": reason}


def print_results(results: RunResults, closing: str) -> None:
    """Print broken, failed, regressed and missed targets."""
    rows = [Row("broken", error) for manifest in results.manifests for error in manifest.errors]
    kinds = {
        "failed": results.failed,
        "regressed": results.regressed,
        "noisy": results.noisy,
        "flaky": results.flaky,
    }
    for word, targets in kinds.items():
        for target in targets[:_MOST_LINES]:
            reason = target.reason.partition("\n")[0]
            if word == "flaky":
                reason = f"passed when repeated; {target.first_failure}"
            parts = [target.target, reason]
            parts += [f"last passed {target.last_passed[:10]}"] if target.last_passed else []
            parts += [f"owner: {target.owner}"] if target.owner else []
            rows.append(Row(word, "  ".join(filter(None, parts))))
        if len(targets) > _MOST_LINES:
            rows.append(Row(word, f"and {plural(len(targets) - _MOST_LINES, 'more target')}"))
    for reason, targets in results.never_ran_by_reason.items():
        names = first_names([target.target for target in targets], _MOST_NAMES)
        rows.append(Row("never ran", f"{names}  {reason}"))
    print_rows(rows, [closing])
