"""buildsys nightly: build everything stale despite failures and broken manifests, then report."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from buildsys import __version__
from buildsys.cli.command import INTERRUPTED, add_names
from buildsys.cli.commands.build import add_executor, add_jobs, chosen_names
from buildsys.cli.commands.nightly.lock import NightlyLock, NightlyRun, hold_lock
from buildsys.cli.console.rows import Row, print_rows
from buildsys.cli.model_filter import ModelFilter, add_filter
from buildsys.cli.project_root import shown_path, shown_text
from buildsys.cli.run_files import collect_results, results_document, write_files
from buildsys.cli.session import Session
from buildsys.cli.target_names import STAGE_DOCS
from buildsys.cli.tasks import run_targets
from buildsys.errors import BuildsysError, CheckFailed, UsageError
from buildsys.execution.stale_reasons import REBUILD, Reason
from buildsys.project.load import empty_project
from buildsys.report.formatting import first_names, plural
from buildsys.report.run_results import (
    FINISHED,
    REFUSED,
    RUNNING,
    RunResults,
    TargetResult,
)
from buildsys.report.run_results import INTERRUPTED as INTERRUPTED_RUN
from buildsys.report.run_summary import outcome
from buildsys.store.ledger import NOISY, PASSED, RESTORED, UNAVAILABLE, utc_now
from buildsys.system.printable import printable
from buildsys.system.suggestions import nearest

SCHEMA = "buildsys/nightly/1"
FOLDER = "nightly"  # in the build folder
_EVERYTHING = "everything"
_DONE = (PASSED, RESTORED, UNAVAILABLE, NOISY)
_RECENT_RUNS = 20
_MOST_LINES = 30  # lines per kind at the end of the output
_MOST_NAMES = 5  # on one line


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys nightly``."""
    add_names(parser, "[TARGET ...]")
    add_jobs(parser, "number of targets at a time; by default one per GPU and one more")
    parser.add_argument(
        "--all", action="store_true", help="rebuild targets that are up to date as well"
    )
    parser.add_argument(
        "--rebuild", default="", help="rebuild a stage and what depends on it, e.g. engines"
    )
    add_executor(parser)
    add_filter(parser)


def run(options: Namespace) -> int:
    """Build under the lock of nightly runs, and always write the files."""
    project = empty_project(options.root)
    started = utc_now()
    rebuild = _stages(options.rebuild) + ([_EVERYTHING] if options.all else [])
    with hold_lock(project.state / "nightly.lock", started) as lock:
        return _Night(options, project.build / FOLDER, lock, started, rebuild).run()


class _Night:
    """One nightly run."""

    def __init__(
        self,
        options: Namespace,
        folder: Path,
        lock: NightlyLock,
        started: str,
        rebuild: Sequence[str],
    ) -> None:
        self._options = options
        self._folder = folder
        self._lock = lock
        self._started = started
        self._rebuild = rebuild  # stages, or everything

    def run(self) -> int:
        """Build and write the files; return the exit code."""
        previous = self._lock.previous
        if previous is not None and previous.running:
            text = f"the previous nightly run ({previous}) was killed; finished targets are kept"
            sys.stdout.write(printable(f"{text}, the rest runs now\n"))
            sys.stdout.flush()
        problem = "the run has not finished; if its process is gone, it was killed"
        code = self._write_unfinished(RUNNING, f"{problem} ({self._lock.run})", 0)
        if code:  # nobody would learn how the run ended
            self._lock.end(finished=False)
            return code
        status = ""
        try:
            session = Session.load(self._options.root, leave_out=True)
            if self._options.on:
                results, code = self._build_elsewhere(session)
            else:
                names = self._choose(session)
                code = run_targets(session, names, jobs=self._jobs(), keep_going=True)
                results = collect_results(session, self._started, since=self._lock.run.since)
            status, code = results.status, self._finish(session, results, code)
        except BuildsysError as error:
            self._write_unfinished(REFUSED, str(error), error.exit_code)
            raise
        except KeyboardInterrupt:
            problem = "interrupted before the first target"
            self._write_unfinished(INTERRUPTED_RUN, problem, INTERRUPTED)
            raise
        finally:
            self._lock.end(finished=status == FINISHED)
        return code

    def _jobs(self) -> int:
        """Choose one target per GPU and one on the processor; unlike GPUs go to one target."""
        if self._options.jobs:
            return int(self._options.jobs)
        from buildsys.system.devices import equal_gpus, gpu_uuids

        gpus = len(equal_gpus()) or len(gpu_uuids()[:1])
        return gpus + 1 if gpus else 0

    def _choose(self, session: Session) -> list[str]:
        """List the names to build; mark the targets to rebuild and repeat."""
        session.repeats_flaky = session.remeasures_noisy = True
        if not session.project.models and not session.project.broken:
            folder = os.path.relpath(session.project.configs / "models", self._options.root)
            raise UsageError(
                f"there is nothing to build: {folder} has no manifest",
                "put one YAML file per model there",
            )
        names = chosen_names(session, self._options.names, ModelFilter.of(self._options))
        members = {target for name in names for target in session.members(name)}
        requested = dict(_rebuilds(session, members, self._rebuild, self._started))
        previous = self._lock.previous
        pending = _pending(session, previous.rebuilds if previous else {})
        rebuilds = {**pending, **requested}
        self._lock.set_rebuilds(rebuilds)
        session.rebuilds = {
            target: Reason(REBUILD, what)
            for target, (what, _) in rebuilds.items()
            if target in members
        }
        return names

    def _build_elsewhere(self, session: Session) -> tuple[RunResults, int]:
        """Let other machines build everything stale; return results and exit code."""
        from buildsys.cli.build_on import run_on

        options = self._options
        stages = [stage for stage in self._rebuild if stage != _EVERYTHING]
        command = ["nightly", *(["--all"] if options.all else [])]
        command += ["--rebuild", ",".join(stages)] if stages else []
        run = run_on(session, options.names, options, tuple(command), self._lock.run.since)
        return run.results, run.exit_code

    def _finish(self, session: Session, results: RunResults, code: int) -> int:
        """Write the files and print the failures; return the exit code."""
        if results.manifests:
            code = max(code, UsageError.exit_code)
        if not code and results.regressed:
            code = CheckFailed.exit_code
        if not code and results.never_ran:
            code = BuildsysError.exit_code
        self._lock.set_rebuilds(_pending(session, self._lock.run.rebuilds))
        if self._html() is None:  # the reporter updates the pages of models that have changed
            from buildsys.cli.html_pages import update_pages

            line = update_pages(session, list(session.project.models))
            sys.stdout.write(printable(f"{line}\n") if line else "")
        code = max(code, self._write(results, code))
        _print_end(results, self._folder)
        return code

    def _write_unfinished(self, status: str, error: str, code: int) -> int:
        host = self._lock.run.host
        return self._write(RunResults(self._started, 0.0, host, status=status, error=error), code)

    def _html(self) -> str | None:
        """Return the index of the HTML reports, relative to the project."""
        index = self._folder.parent / "report" / "index.html"
        return os.path.relpath(index, self._options.root) if index.is_file() else None

    def _write(self, results: RunResults, code: int) -> int:
        """Write the files; return exit code 2 on a failure."""
        previous = self._lock.previous
        document = {
            "schema": SCHEMA,
            **results_document(results, None if results.status == RUNNING else code),
            "pid": os.getpid(),
            "buildsys": __version__,
            "names": self._options.names,
            "tags": self._options.tag,
            "owners": self._options.owner,
            "rebuild": self._rebuild,
            "killed": _killed(previous),
            "html": self._html(),
        }
        files = {"junit": "junit.xml", "summary": "summary.md", "json": "nightly.json"}
        paths = {kind: str(self._folder / name) for kind, name in files.items()}
        title = f"Nightly run of {results.started[:16].replace('T', ' ')} UTC"
        return write_files(paths, results, title, json.dumps(document, indent=2) + "\n")


def _stages(names: str) -> list[str]:
    """Return the stages of ``--rebuild``: engines, or engine,validate.

    Raises: UsageError: an unknown stage.
    """
    stages = [name for name in STAGE_DOCS if name != "build"]
    found = []
    for name in filter(None, names.split(",")):
        stage = name if name in stages else name.removesuffix("s")
        if stage not in stages:
            near = nearest(name, stages)
            hint = f"nearest: {', '.join(near)}" if near else f"stages: {', '.join(stages)}"
            raise UsageError(f"--rebuild: there is no stage {name!r}", hint)
        found.append(stage)
    return found


def _rebuilds(
    session: Session, members: Collection[str], stages: Collection[str], when: str
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the targets of the stages to rebuild, and those downstream."""
    found: dict[str, str] = {}
    for target in session.in_order(members) if stages else ():
        action = session.actions[target]
        stage = action.stage if action.stage in stages else ""
        what = next((found[name] for name in action.after if name in found), stage)
        what = _EVERYTHING if _EVERYTHING in stages else what
        if what:
            found[target] = what
            yield target, (what, when)


def _pending(
    session: Session, rebuilds: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """Return the requested rebuilds not done since."""

    def is_done(target: str, when: str) -> bool:
        runs = session.executor.ledger.history(target, _RECENT_RUNS)
        return any(run.started >= when and run.status in _DONE for run in runs)

    return {
        target: (what, when)
        for target, (what, when) in rebuilds.items()
        if target in session.actions and not is_done(target, when)
    }


def _killed(previous: NightlyRun | None) -> dict[str, Any] | None:
    """Return the run before this one, if it was killed."""
    if previous is None or not previous.running:
        return None
    return {"pid": previous.pid, "host": previous.host, "started": previous.started}


def _print_end(results: RunResults, folder: Path) -> None:
    """Print failed, regressed and missed targets, and the files."""
    rows: list[Row] = []
    for manifest in results.manifests:
        rows += [Row("broken", error) for error in manifest.errors]
    for word, targets in (
        ("failed", results.failed),
        ("regressed", results.regressed),
        ("noisy", results.noisy),
        (
            "flaky",
            [
                replace(one, reason=f"passed when repeated; {one.first_failure}")
                for one in results.flaky
            ],
        ),
    ):
        rows += [Row(word, _line(one)) for one in targets[:_MOST_LINES]]
        if len(targets) > _MOST_LINES:
            rows.append(Row(word, f"and {plural(len(targets) - _MOST_LINES, 'more target')}"))
    for reason, targets in results.never_ran_by_reason.items():
        names = first_names([one.target for one in targets], _MOST_NAMES)
        rows.append(Row("never ran", f"{names}  {reason}"))
    files = [folder / "summary.md"]
    if (index := folder.parent / "report" / "index.html").is_file():
        files.append(index)
    print_rows(rows, [f"nightly: {outcome(results)}; see {' and '.join(map(shown_path, files))}"])


def _line(one: TargetResult) -> str:
    parts = [one.target, shown_text(one.reason.split("\n")[0])]
    parts += [f"last passed {one.last_passed[:10]}"] if one.last_passed else []
    parts += [f"owner: {one.owner}"] if one.owner else []
    return "  ".join(part for part in parts if part)
