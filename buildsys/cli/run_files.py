"""Files for CI systems about a run: JUnit XML and Markdown."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.cli.session import BuildSession
from buildsys.errors import BuildsysError, StageError, with_hint
from buildsys.execution.run_records import why_stopped
from buildsys.execution.stale_reasons import decode_reasons, summarize_reasons
from buildsys.report import run_results as ends
from buildsys.report.key_figures import key_figure
from buildsys.report.run_reports import junit_xml, outcome, run_summary
from buildsys.report.run_results import BrokenManifest, RunResults, TargetResult, regression
from buildsys.stages.table import GATE
from buildsys.system.files import replace_file
from buildsys.system.printable import printable

if TYPE_CHECKING:
    from buildsys.store.ledger import HistoryEntry

_RECENT_RUNS = 20
_MOST_REASONS = 2


def write_unfinished(files: Mapping[str, str], started: str, error: str = "") -> int:
    """Write files about a run that goes on, or that an error refused; return 2 on a failure."""
    status = ends.REFUSED if error else ends.RUNNING
    error = error or "the run has not finished; if its process is gone, it was killed"
    run = RunResults(started, 0.0, socket.gethostname(), status=status, error=error)
    return write_files(files, run, "Build")


def write_files(files: Mapping[str, str], run: RunResults, title: str, document: str = "") -> int:
    """Write files about a run; return exit code 2 on a failure.

    ``document`` is the JSON of a nightly run, which must reach all targets.
    """
    contents = {
        "junit": lambda: junit_xml(run, strict=bool(document)),
        "summary": lambda: run_summary(run, title).encode(),
        "json": lambda: document.encode(),
        "results": lambda: json.dumps(asdict(run)).encode(),
    }
    code = 0
    for option, name in files.items():
        try:
            replace_file(Path(name), contents[option]())
        except OSError as error:
            sys.stderr.write(printable(f"ERROR: cannot write {name}: {error.strerror}\n"))
            code = StageError.exit_code
    return code


def collect_results(session: BuildSession, started: str) -> RunResults:
    """Collect the results of the run begun at ``started``."""
    results = _Results(session, session.ignored(), started)
    is_interrupted = bool(session.interrupted)
    return RunResults(
        started=started,
        seconds=session.seconds or time.monotonic() - session.began,
        host=socket.gethostname(),
        status=ends.INTERRUPTED if is_interrupted else ends.FINISHED,
        error="interrupted; finished targets are kept" if is_interrupted else "",
        targets=tuple(results.of(target) for target in session.in_order(session.requested)),
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


class _Results:
    """The results of targets, from this run and from the ledger."""

    def __init__(self, session: BuildSession, ignored: Collection[str], since: str) -> None:
        self._session = session
        self._ignored = ignored
        self._since = since

    def of(self, target: str) -> TargetResult:
        """Make the result of one target."""
        session, action = self._session, self._session.actions[target]
        end, log = session.finished.get(target), session.log(target)
        has_log = end is not None and not end.waited and log.is_file()
        return TargetResult(
            target=target,
            model=action.model,
            stage=action.stage,
            variant=action.variant,
            owner=session.project.models[action.model].data["owner"],
            log=os.path.relpath(log, session.project.root) if has_log else "",
            first_failure=session.first_failures.get(target, ""),
            **self._end(target),
        )

    def _end(self, target: str) -> dict[str, Any]:
        session, action = self._session, self._session.actions[target]
        end = session.finished.get(target)
        if shortfall := session.shortfall(target):
            reason = with_hint(end.reason, end.hint) if end else session.recorded_reason(target)
            seconds = end.seconds if end and not (end.waited or end.restored) else 0.0
            history = self._history(target) if shortfall == ends.UNAVAILABLE else {}
            return {"status": shortfall, "reason": reason, "seconds": seconds, **history}
        if end is None:
            is_current = session.is_up_to_date(target)
            return {"status": ends.UP_TO_DATE} if is_current else self._not_run(target)
        if end.waited:
            return {"status": ends.UP_TO_DATE, "reason": "built by another run meanwhile"}
        if end.status == ends.FAILED:
            history = self._history(target)
            return {
                "status": ends.FAILED,
                "reason": with_hint(end.reason, end.hint),
                "error": end.error,
                "seconds": end.seconds,
                **history,
                "regressed": history["regressed"] or action.stage == GATE,
            }
        why = [decode_reasons(run.why) for run in self._runs(target)[:1]]
        return {
            "status": ends.RESTORED if end.restored else ends.PASSED,
            "figure": key_figure(action.stage, session.result(target)),
            "why": summarize_reasons(why[0], _MOST_REASONS) if why else "",
            "seconds": 0.0 if end.restored else end.seconds,
        }

    def _not_run(self, target: str) -> dict[str, Any]:
        """Explain a stale target without a run."""
        session = self._session
        needed = [target, *(name for name in session.needed([target]) if name != target)]
        ignored = next((name for name in needed if name in self._ignored), "")
        if ignored:
            what = "excluded" if ignored == target else f"needs {ignored}, which is excluded"
            reason = f"{what} by `doit ignore`; `doit forget {ignored}` includes it"
            return {"status": ends.IGNORED, "reason": reason}
        outcomes = [session.finished[name] for name in needed if name in session.finished]
        failed = [end.target for end in outcomes if end.status == ends.FAILED]
        reason = f"needs {failed[0]}, which failed" if failed else why_stopped(session.finished)
        if session.interrupted and not failed:
            reason = "interrupted"
        return {"status": ends.NOT_RUN, "reason": reason}

    def _runs(self, target: str) -> list[HistoryEntry]:
        try:
            return self._session.executor.ledger.history(target, _RECENT_RUNS)
        except (BuildsysError, OSError):  # a locked or damaged state: the run reports it
            return []

    def _history(self, target: str) -> dict[str, Any]:
        """Look up the time of the last success, and any regression since."""
        runs = [(run.status, run.started) for run in self._runs(target) if run.status != ends.NOISY]
        last_passed, regressed = regression(runs, self._since)
        return {"regressed": regressed, "last_passed": last_passed}
