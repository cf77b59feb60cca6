"""Files for CI systems about a run, JUnit XML and Markdown, and runs on other machines."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from buildsys.cli.command import shown_path
from buildsys.cli.console.progress import ConsoleLine
from buildsys.cli.console.rows import Row, print_rows
from buildsys.cli.interrupts import INTERRUPTED, TERMINATED, ending
from buildsys.cli.session import BuildSession
from buildsys.errors import BuildsysError, StageError, UsageError, with_hint
from buildsys.execution.run_records import why_stopped
from buildsys.report import run_results as ends
from buildsys.report.formatting import duration, first_names, fold
from buildsys.report.run_results import (
    BrokenManifest,
    RunResults,
    TargetResult,
    junit_xml,
    outcome,
    regression,
    run_summary,
)
from buildsys.stages.table import GATE
from buildsys.store.publish import refuse_links
from buildsys.system.files import replace_file
from buildsys.system.printable import printable

if TYPE_CHECKING:
    from buildsys.remote.driver import RemoteRun

_RECENT_RUNS = 20
_STATUSES = {"fresh": ends.UP_TO_DATE, "not run": ends.NOT_RUN}  # of lines on the console
_MOST_NAMES = 5  # on one line


class RunFiles:
    """The files about a run, written at its begin and again at its end."""

    def __init__(
        self,
        build: Path,
        paths: Mapping[str, Path],
        title: str = "Build",
        document: Callable[[RunResults, int | None], Mapping[str, Any]] | None = None,
    ) -> None:
        """Prepare files by kind: junit, summary, results or json; in ``build`` through no link.

        ``document`` makes the JSON of a nightly run, which must reach all targets.
        """
        self._build, self._paths = build, paths
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

        def end(code: int) -> None:
            problem = "interrupted before the first target"
            self._write_unfinished(started, ends.INTERRUPTED, problem, code)

        try:
            with ending(end):
                yield
        except BuildsysError as error:
            self._write_unfinished(started, ends.REFUSED, str(error), error.exit_code)
            raise
        except KeyboardInterrupt:
            end(INTERRUPTED)
            raise

    def _write_unfinished(self, started: str, status: str, error: str, code: int | None) -> None:
        host = socket.gethostname()
        self.write(RunResults(started, 0.0, host, status=status, error=error), code)

    def write(self, run: RunResults, exit_code: int | None) -> None:
        """Write all files. Raises: StageError: one cannot be written."""
        refuse_links(self._build, map(str, self._paths.values()))
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
    is_interrupted = bool(session.interrupted)
    marks = session.ignored()
    return RunResults(
        started=started,
        seconds=time.monotonic() - session.began,
        host=socket.gethostname(),
        status=ends.INTERRUPTED if is_interrupted else ends.FINISHED,
        error="interrupted; finished targets are kept" if is_interrupted else "",
        targets=tuple(
            _result(session, session.lines[target], marks, started)
            for target in session.in_order(session.lines)
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
    for file, errors in session.broken.items():
        yield BrokenManifest(file, tuple(dict.fromkeys(map(str, errors))))


def _result(
    session: BuildSession, line: ConsoleLine, marks: Collection[str], since: str
) -> TargetResult:
    """Make the result of one target, from this run and from the ledger."""
    target, end, log = line.target, session.finished.get(line.target), session.log(line.target)
    status = _STATUSES.get(line.status, line.status)
    reason = with_hint(line.reason, line.hint)
    has_log = end is not None and not end.waited and log.is_file()
    is_failure = status == ends.FAILED
    is_built = status in (ends.PASSED, ends.RESTORED)
    if status == ends.IGNORED:
        reason = "it needs a target that is excluded by `doit ignore`"
        if target in marks:
            reason = f"excluded by `doit ignore`; `doit forget {target}` includes it"
    elif status == ends.NOT_RUN:
        stopped = "interrupted" if session.interrupted else why_stopped(session.finished)
        reason = f"{reason}, which failed" if reason.startswith("needs ") else stopped
    last_passed, regressed = "", False
    if is_failure or status == ends.UNAVAILABLE:
        with suppress(BuildsysError, OSError):  # a locked or damaged state: the run reports it
            runs = session.executor.ledger.history(target, _RECENT_RUNS)
            steady = [(run.status, run.started) for run in runs if run.status != ends.NOISY]
            last_passed, regressed = regression(steady, since)
    return TargetResult(
        target=target,
        model=line.model,
        stage=line.stage,
        variant=line.variant,
        status=status,
        reason=reason,
        error=end.error if end is not None and is_failure else "",
        seconds=line.seconds or 0.0,
        figure=line.figure if is_built else "",
        why=line.why if is_built else "",
        owner=session.project.models[line.model].data["owner"],
        log=os.path.relpath(log, session.project.root) if has_log else "",
        first_failure=session.first_failures.get(target, ""),
        last_passed=last_passed,
        regressed=regressed or (is_failure and line.stage == GATE),
    )


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
        for target in targets:
            reason = fold(target.reason.partition("\n")[0])[0]
            if word == "flaky":
                reason = f"passed when repeated; {target.first_failure}"
            owner = f"owner: {target.owner}" if target.owner else ""
            rows.append(Row(word, "  ".join(filter(None, (target.target, reason, owner)))))
    for reason, targets in results.never_ran_by_reason.items():
        names = first_names([target.target for target in targets], _MOST_NAMES)
        rows.append(Row("never ran", f"{names}  {reason}"))
    print_rows(rows, [closing])


def build_on(
    session: BuildSession, names: Sequence[str], options: Namespace, files: RunFiles
) -> int:
    """Run ``buildsys build --on`` for targets and groups; return its exit code.

    Raises: BuildsysError: the settings or systems are wrong.
    """
    command = ["build", "--continue"]
    flags = ("force", "remeasure", "no_bench", "no_trials")
    command += [f"--{name.replace('_', '-')}" for name in flags if getattr(options, name)]
    command += ["-j", str(options.jobs)] if options.jobs else []
    run = run_on(session, names, options, tuple(command))
    print_results(run.results, f"{outcome(run.results)} in {duration(run.results.seconds)}")
    files.write(run.results, run.exit_code)
    return run.exit_code


def run_on(
    session: BuildSession, names: Sequence[str], options: Namespace, command: tuple[str, ...]
) -> RemoteRun:
    """Build on ``options.on``, and write the pages of its models.

    ``command`` begins the command line of the jobs. Raises: BuildsysError.
    """
    from buildsys.cli.commands.pages import update_pages
    from buildsys.remote.driver import Request
    from buildsys.remote.driver import run_on as run_remotely

    chosen = {target for name in names for target in session.members(name)}
    targets = session.in_order(session.needed(chosen))
    request = Request(
        actions={target: session.actions[target] for target in targets},
        command=command,
        fetch_into=session.executor if options.fetch else None,
        checkout=session.checkout,
        trust=session.trust,
        show=_print,
    )
    interrupted_code = INTERRUPTED

    def terminate(*_: object) -> NoReturn:
        nonlocal interrupted_code
        interrupted_code = TERMINATED
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGTERM, terminate)
    try:
        run = run_remotely(session.project, options.on, request)
        if run.results.status == ends.INTERRUPTED:
            run = run._replace(exit_code=interrupted_code)
        models = dict.fromkeys(session.actions[target].model for target in targets)
        if line := update_pages(session, models, run.reports):
            _print(line)
    finally:
        session.close()
        signal.signal(signal.SIGTERM, earlier)
    manifests = tuple(broken_manifests(session))
    return run._replace(results=replace(run.results, manifests=manifests))


def _print(line: str) -> None:
    sys.stdout.write(printable(f"{line}\n"))
    sys.stdout.flush()
