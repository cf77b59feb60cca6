"""buildsys build: build targets."""

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

from buildsys.cli.command import (
    add_json,
    add_names,
    find_project,
    positive_integer,
    print_json,
    typed_path,
)
from buildsys.cli.session import BuildSession
from buildsys.cli.sources import SOURCES, add_source_arguments, find_source, is_source
from buildsys.cli.target_names import ModelFilter, add_filter
from buildsys.cli.tasks import run_targets
from buildsys.errors import UsageError
from buildsys.store.ledger import utc_now

SCHEMA = "buildsys/build/1"
_EVERYTHING = "build"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys build``."""
    add_names(parser, "[TARGET ... | SOURCE]")
    parser.epilog = (
        "Without a TARGET, everything of every model. A SOURCE needs no manifest and no project:\n"
        f"{SOURCES}\n"
        "Its inputs and its export come from trial runs, as with `buildsys new`; its engines and\n"
        "the report are copied into ./MODEL/. --save keeps the manifest, in a project"
    )
    add_jobs(parser, "number of targets at a time")
    parser.add_argument(
        "--continue", dest="keep_going", action="store_true",
        help="go on after a failure with what does not depend on it",
    )  # fmt: skip
    parser.add_argument(
        "--force", action="store_true", help="build even what is up to date or stored"
    )
    parser.add_argument("-a", "--always-execute", dest="force", action="store_true", help=SUPPRESS)
    parser.add_argument(
        "-s", "--single", action="store_true", help="only the named targets, not what they need"
    )
    parser.add_argument(
        "--no-bench", action="store_true", help="neither benchmarks nor what depends on them"
    )
    parser.add_argument(
        "--no-trials", action="store_true", help="do not try changes of a manifest after a failure"
    )
    parser.add_argument(
        "--remeasure", action="store_true", help="measure benchmarks and gates again"
    )
    parser.add_argument("--since", default="", help="only what differs from a git revision")
    parser.add_argument("--junit", default="", help="write the results as JUnit XML into a file")
    parser.add_argument("--summary", default="", help="write a summary in Markdown into a file")
    parser.add_argument("--results", default="", help="write the results as JSON into a file")
    add_executor(parser)
    add_json(parser)
    add_filter(parser)
    add_source_arguments(parser)


def add_executor(parser: ArgumentParser) -> None:
    """Declare ``--on`` and ``--fetch``."""
    parser.add_argument("--on", default="", help="build on an executor of project.yaml")
    parser.add_argument(
        "--fetch", action="store_true", help="with --on: copy engines and reports into build/"
    )


def add_jobs(parser: ArgumentParser, text: str) -> None:
    """Declare ``--jobs``, also under the name that doit has for it."""
    parser.add_argument("-j", "--jobs", type=positive_integer, default=0, help=text)
    parser.add_argument("-n", dest="jobs", type=positive_integer, default=0, help=SUPPRESS)


def needs_project(options: Namespace) -> bool:
    """Check whether the names are targets."""
    here = Path.cwd()
    return bool(find_project(here)) or not any(is_source(here, name) for name in options.names)


def run(options: Namespace) -> int:
    """Build, and write the files about the run."""
    if source := find_source(options):
        from buildsys.cli.one_shot import build_source

        return build_source(source, options, partial(_run, options))
    return _run(options, partial(BuildSession.load, options.root))


def _run(options: Namespace, open_session: Callable[[], BuildSession]) -> int:
    names = {kind: getattr(options, kind) for kind in ("junit", "summary", "results")}
    paths = {kind: typed_path(name).absolute() for kind, name in names.items() if name}
    if not (paths or options.json or options.on):  # what follows takes 30 ms
        return _build(open_session(), options)
    from buildsys.cli.run_files import RunFiles, collect_results, results_document
    from buildsys.project.load import empty_project

    files, started = RunFiles(empty_project(options.root).build, paths), utc_now()
    with files.begin(started):
        session = open_session()
        if options.on:
            from buildsys.cli.run_files import build_on

            return build_on(session, chosen_names(session, options), options, files)
        code = _build(session, options)
    results = collect_results(session, started)
    if options.json:
        print_json({"schema": SCHEMA, **results_document(results, code)})
    files.write(results, code)
    return code


def _build(session: BuildSession, options: Namespace) -> int:
    names = chosen_names(session, options)
    if options.remeasure:
        session.remeasure(names)
    session.has_trials &= not options.no_trials
    return run_targets(
        session,
        names,
        jobs=options.jobs,
        keep_going=options.keep_going,
        force=options.force,
        single=options.single,
        out=sys.stderr if options.json else sys.stdout,
    )


def chosen_names(session: BuildSession, options: Namespace) -> list[str]:
    """List the full names of the targets and groups to build.

    Raises: UsageError: a name, tag or owner is unknown.
    """
    session.leave_out(options.names)
    try:
        names = session.full_names(options.names or [_EVERYTHING], ModelFilter.of(options))
    except UsageError as error:
        if not session.project.broken:
            raise
        # an unknown name or tag may be that of a manifest left out
        broken = ", ".join(session.project.broken)
        raise UsageError(f"{error}; left out as broken: {broken}") from None
    if since := getattr(options, "since", ""):
        from buildsys.cli.commands.plan import changed_targets

        members = {target for name in names for target in session.members(name)}
        names = [name for name in changed_targets(session, since) if name in members]
    if getattr(options, "no_bench", False):  # nor what depends on a measurement
        targets = {target for name in names for target in session.members(name)}
        measured: set[str] = set()
        for target in session.in_order(session.needed(targets)):
            action = session.actions[target]
            if action.measures or not measured.isdisjoint(action.after):
                measured.add(target)
        names = session.in_order(targets - measured)
    return names
