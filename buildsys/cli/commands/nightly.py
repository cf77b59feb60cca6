"""buildsys nightly: build everything stale despite failures and broken manifests, then report."""

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from buildsys import __version__
from buildsys.cli.command import add_names, print_lines, shown_path, unknown_name
from buildsys.cli.commands.build import add_executor, add_jobs, chosen_names
from buildsys.cli.run_files import RunFiles, collect_results, print_results, results_document
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import STAGE_DOCS, add_filter
from buildsys.cli.tasks import run_targets
from buildsys.errors import BuildsysError, CheckFailed, StageError, UsageError
from buildsys.execution.stale_reasons import REBUILD, StaleReason
from buildsys.project.load import empty_project
from buildsys.report.run_results import RUNNING, RunResults, outcome
from buildsys.store.ledger import utc_now
from buildsys.system.files import locked

SCHEMA = "buildsys/nightly/1"
FOLDER = "nightly"  # in the build folder
_EVERYTHING = "everything"


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
    project, started = empty_project(options.root), utc_now()
    folder, lock = project.build / FOLDER, project.state / "nightly.lock"
    stages = _stages(options.rebuild) + ([_EVERYTHING] if options.all else [])
    with ExitStack() as stack:
        killed = _run_in(folder)
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(lock, timeout_s=0.0))
        except BlockingIOError:
            problem = f"another nightly run is in progress{f': {_title(killed)}' if killed else ''}"
            raise StageError(problem, "wait until it has finished") from None
        if killed:
            text = f"the previous nightly run ({_title(killed)}) was killed; finished targets"
            print_lines([f"{text} are kept, the rest runs now"])

        def document(results: RunResults, code: int | None) -> dict[str, Any]:
            index = _index(folder)
            return {
                "schema": SCHEMA,
                **results_document(results, code),
                "pid": os.getpid(),
                "buildsys": __version__,
                "names": options.names,
                "tags": options.tag,
                "owners": options.owner,
                "rebuild": stages,
                "killed": killed,
                "html": os.path.relpath(index, options.root) if index.is_file() else None,
            }

        names = {"junit": "junit.xml", "summary": "summary.md", "json": "nightly.json"}
        title = f"Nightly run of {started[:16].replace('T', ' ')} UTC"
        paths = {kind: folder / name for kind, name in names.items()}
        files = RunFiles(project.build, paths, title, document)
        with files.begin(started):
            results, code = _build(options, stages, started)
        files.write(results, code)
    reports = [path for path in (folder / "summary.md", _index(folder)) if path.is_file()]
    places = " and ".join(map(shown_path, reports))
    print_results(results, f"nightly: {outcome(results)}; see {places}")
    return code


def _build(options: Namespace, stages: Sequence[str], started: str) -> tuple[RunResults, int]:
    """Build everything stale, here or on other machines; return results and exit code."""
    session = BuildSession.load(options.root)
    project = session.project
    if not project.models and not project.broken:
        folder = os.path.relpath(project.configs / "models", options.root)
        problem = f"there is nothing to build: {folder} has no manifest"
        raise UsageError(problem, "put one YAML file per model there")
    names = chosen_names(session, options)
    if options.on:
        from buildsys.cli.run_files import run_on

        command = ["nightly", *(["--all"] if options.all else [])]
        command += ["--rebuild", options.rebuild] if options.rebuild else []
        run = run_on(session, names, options, tuple(command))
        results, code = run.results, run.exit_code
    else:
        session.repeats_flaky = True
        session.remeasure(names, only_noisy=True)
        if stages:
            members = {target for name in names for target in session.members(name)}
            session.rebuilds |= _rebuilds(session, members, stages)
        code = run_targets(session, names, jobs=options.jobs or _default_jobs(), keep_going=True)
        results = collect_results(session, started)
    if not _index(project.build / FOLDER).is_file():  # a run updates the pages of its models
        from buildsys.cli.commands.pages import update_pages

        print_lines(filter(None, [update_pages(session, list(project.models))]))
    if results.manifests:
        return results, max(code, UsageError.exit_code)
    if not code and results.regressed:
        return results, CheckFailed.exit_code
    return results, BuildsysError.exit_code if not code and results.never_ran else code


def _default_jobs() -> int:
    """Choose one target per GPU and one on the processor; unlike GPUs go to one target."""
    from buildsys.system.devices import equal_gpus, gpu_uuids

    gpus = len(equal_gpus()) or len(gpu_uuids()[:1])
    return gpus + 1 if gpus else 0


def _index(folder: Path) -> Path:
    return folder.parent / "report" / "index.html"


def _run_in(folder: Path) -> dict[str, Any] | None:
    """Read the process that writes or wrote the files of a run, None if the run has ended."""
    try:
        document = json.loads((folder / "nightly.json").read_bytes())
        if document["status"] == RUNNING:
            return {name: document[name] for name in ("pid", "host", "started")}
    except (OSError, ValueError, TypeError, KeyError):  # no run before this one
        pass
    return None


def _title(run: dict[str, Any]) -> str:
    """Format a run as ``process 4711 on host, started 2026-11-22 02:00:00 UTC``."""
    started = str(run["started"]).replace("T", " ").replace("Z", " UTC")
    return f"process {run['pid']} on {run['host']}, started {started}"


def _stages(names: str) -> list[str]:
    """Parse the stages of ``--rebuild``: engines, or engine,validate.

    Raises: UsageError: an unknown stage.
    """
    every_stage = [name for name in STAGE_DOCS if name != "build"]
    stages = []
    for name in filter(None, names.split(",")):
        stage = name if name in every_stage else name.removesuffix("s")
        if stage not in every_stage:
            listed = f"stages: {', '.join(every_stage)}"
            raise unknown_name("stage", name, every_stage, listed)
        stages.append(stage)
    return stages


def _rebuilds(
    session: BuildSession, members: Collection[str], stages: Collection[str]
) -> dict[str, StaleReason]:
    """List the targets of the stages to rebuild and what depends on them, with the reason."""
    rebuilds: dict[str, StaleReason] = {}
    for target in session.in_order(members):
        action = session.actions[target]
        above = next((rebuilds[name] for name in action.after if name in rebuilds), None)
        if _EVERYTHING in stages:
            rebuilds[target] = StaleReason(REBUILD, _EVERYTHING)
        elif above or action.stage in stages:
            rebuilds[target] = above or StaleReason(REBUILD, action.stage)
    return rebuilds
