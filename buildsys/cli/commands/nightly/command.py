"""buildsys nightly: build everything stale despite failures and broken manifests, then report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from doit.cmd_run import Run as DoitRun
from doit.exceptions import InvalidCommand, InvalidDodoFile

from buildsys import __version__
from buildsys.cli.command import INTERRUPTED, TERMINATED
from buildsys.cli.commands.build import Requested, Run
from buildsys.cli.commands.doit_commands import DoitCommand
from buildsys.cli.commands.nightly.lock import NightlyLock, NightlyRun, hold_lock
from buildsys.cli.console.rows import Row, print_rows
from buildsys.cli.doit_options import filter_options, option
from buildsys.cli.project_root import shown_path, shown_text
from buildsys.cli.run_files import write_files
from buildsys.cli.session import Session
from buildsys.cli.target_names import STAGE_DOCS
from buildsys.errors import BuildsysError, CheckFailed, StageError, UsageError
from buildsys.execution.stale_reasons import REBUILD, Reason
from buildsys.project.load import empty_project
from buildsys.report.formatting import first_names, plural
from buildsys.report.markdown.run_summary import outcome
from buildsys.report.run_results import (
    FINISHED,
    REFUSED,
    RUNNING,
    STATUSES,
    RunResults,
    TargetResult,
)
from buildsys.report.run_results import INTERRUPTED as INTERRUPTED_RUN
from buildsys.store.ledger import NOISY, PASSED, RESTORED, UNAVAILABLE, utc_now
from buildsys.system.printable import printable
from buildsys.system.suggestions import nearest

SCHEMA = "buildsys/nightly/1"
FOLDER = "nightly"  # in the build folder
_EVERYTHING = "everything"
_DONE = (PASSED, RESTORED, UNAVAILABLE, NOISY)
_RECENT_RUNS = 20
_MOST_LINES = 30  # of each kind, at the end of the console output
_MOST_NAMES = 5  # on one line
_OFFERED = ("num_process",)  # of the options of doit run


class Nightly(Run):
    """A run of everything stale, with a report in the build folder."""

    name = "nightly"
    doc_purpose = "build all that is stale, past failures, with JUnit XML and a summary"
    doc_usage = "[TARGET ...]"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._root = self._folder = Path()
        self._lock: NightlyLock | None = None
        self._selection: dict[str, Any] = {}
        self._rebuild: list[str] = []  # stages, or everything
        self._status = ""  # of the run, once its results are known

    @property
    def cmd_options(self) -> tuple[dict[str, Any], ...]:
        """A few of doit's options for runs, and ours."""
        hidden = {"short": "", "long": "", "inverse": ""}
        doits = ({**one, **hidden} for one in DoitRun.cmd_options if one["name"] not in _OFFERED)
        text = "number of targets at a time; by default one per GPU and one more"
        jobs = [{**one, "help": text} for one in DoitRun.cmd_options if one["name"] in _OFFERED]
        return (
            *doits,
            *jobs,
            *filter_options(),
            option("all", "rebuild targets that are up to date as well", flag=True),
            option("rebuild", "rebuild a stage and what depends on it, e.g. engines"),
        )

    def parse_execute(self, in_args: list[str]) -> Any:
        """Accept options after names as well."""
        return DoitCommand.parse_execute(self, in_args)

    def execute(self, params: Any, args: list[str]) -> Any:
        """Build under the lock of nightly runs, and always write the files."""
        if self._lock is not None:  # again, with a new database of doit
            return super().execute(params, args)
        name = params.get("dodoFile", "dodo.py")
        dodo = Path(name).resolve()
        if not dodo.is_file():
            raise InvalidDodoFile(f"there is no {name} here; name it with -f")
        project = empty_project(dodo.parent)
        self._root, self._folder = project.root, project.build / FOLDER
        self.started = utc_now()
        defaults = {
            "junit": "",
            "summary": "",
            "results": "",
            "on": "",
            "continue": True,
            "remeasure": False,
        }
        for name, value in defaults.items():
            params.set_default(name, value)
        if not params["num_process"]:
            from buildsys.system.devices import equal_gpus, gpu_uuids

            # one target per GPU, and one on the processor; of unlike GPUs a target holds all
            gpus = len(equal_gpus()) or len(gpu_uuids()[:1])
            params["num_process"] = gpus + 1 if gpus else 0
        try:
            self._rebuild = _stages(params["rebuild"]) + ([_EVERYTHING] if params["all"] else [])
            labels = {"tags": params["tag"], "owners": params["owner"]}
            self._selection = {"names": [*args], **labels, "rebuild": self._rebuild}
            with hold_lock(project.state / "nightly.lock", self.started) as self._lock:
                return self._build(params, args)
        except UsageError as error:
            raise InvalidCommand(printable(str(error))) from None
        except StageError as error:
            sys.stderr.write(printable(f"ERROR: {error}\n"))
            return error.exit_code

    def _build(self, params: Any, args: list[str]) -> Any:
        assert self._lock is not None
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
        Run.leaves_out = True
        try:
            code = super().execute(params, args)
        except (InvalidCommand, InvalidDodoFile) as error:
            self._write_unfinished(REFUSED, str(error), UsageError.exit_code)
            raise
        finally:
            Run.leaves_out = False
            self._lock.end(finished=self._status == FINISHED)
        if not self._status and code in (INTERRUPTED, TERMINATED):
            self._write_unfinished(INTERRUPTED_RUN, "interrupted before the first target", code)
        elif not self._status:
            self._write_unfinished(REFUSED, f"the run ended with exit code {code}", code)
        return code

    @property
    def needs_results(self) -> bool:
        """True: every nightly run has files about it."""
        return True

    def request(self, params: Any, names: Sequence[str], session: Session) -> Requested:
        """Return the requested tasks; mark the targets to rebuild and repeat."""
        assert self._lock is not None
        session.repeats_flaky = session.remeasures_noisy = True
        if not session.project.models and not session.project.broken:
            folder = os.path.relpath(session.project.configs / "models", self._root)
            raise InvalidCommand(
                f"there is nothing to build: {folder} has no manifest; put one YAML file per model"
                " there"
            )
        requested = super().request(params, names, session)
        members = {target for name in requested.names for target in session.members(name)}
        wanted = dict(_rebuilds(session, members, self._rebuild, self.started))
        previous = self._lock.previous
        pending = _pending(session, previous.rebuilds if previous else {})
        rebuilds = {**pending, **wanted}
        self._lock.set_rebuilds(rebuilds)
        session.rebuilds = {
            target: Reason(REBUILD, what)
            for target, (what, _) in rebuilds.items()
            if target in members
        }
        return requested._replace(every_task=requested.every_task or bool(session.rebuilds))

    def finish(self, session: Session, code: int) -> int:
        """Write the files, print the failures and return the exit code."""
        assert self._lock is not None
        results = self.results(session, since=self._lock.run.since)
        if results.manifests:
            code = max(code, UsageError.exit_code)
        if not code and results.regressed:
            code = CheckFailed.exit_code
        if not code and results.never_ran:
            code = BuildsysError.exit_code
        self._status = results.status
        self._lock.set_rebuilds(_pending(session, self._lock.run.rebuilds))
        if self._html() is None:  # the reporter updates the pages of models that have changed
            from buildsys.cli.html_pages import update_pages

            line = update_pages(session, list(session.project.models))
            sys.stdout.write(printable(f"{line}\n") if line else "")
        code = max(code, self._write(results, code))
        _print_end(results, self._folder)
        return code

    def _write_unfinished(self, status: str, error: str, code: int) -> int:
        assert self._lock is not None
        host = self._lock.run.host
        return self._write(RunResults(self.started, 0.0, host, status=status, error=error), code)

    def _html(self) -> str | None:
        """Return the index of the HTML reports, relative to the project."""
        index = self._folder.parent / "report" / "index.html"
        return os.path.relpath(index, self._root) if index.is_file() else None

    def _write(self, results: RunResults, code: int) -> int:
        """Write the files; return exit code 2 on a failure."""
        assert self._lock is not None
        previous = self._lock.previous
        document = {
            "schema": SCHEMA,
            "status": results.status,
            "outcome": outcome(results),
            "exit_code": None if results.status == RUNNING else code,
            "error": results.error,
            "started": results.started,
            "seconds": round(results.seconds, 3),
            "host": results.host,
            "pid": os.getpid(),
            "buildsys": __version__,
            **self._selection,
            "killed": _killed(previous),
            "counts": {status: results.count(status) for status in STATUSES},
            "failed": [one.target for one in results.failed],
            "regressed": [one.target for one in results.regressed],
            "never_ran": [one.target for one in results.never_ran],
            "flaky": [one.target for one in results.flaky],
            "html": self._html(),
            "manifests": [asdict(one) for one in results.manifests],
            "targets": [asdict(one) for one in results.targets],
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
