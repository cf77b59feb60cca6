"""Builds on other machines, for ``buildsys build --on`` and ``buildsys nightly --on``."""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from buildsys.cli.command import INTERRUPTED, TERMINATED
from buildsys.cli.commands.pages import update_pages
from buildsys.cli.run_files import RunFiles, broken_manifests, print_results
from buildsys.cli.session import BuildSession
from buildsys.report import run_results as ends
from buildsys.report.formatting import duration
from buildsys.report.run_results import outcome
from buildsys.system.printable import printable

if TYPE_CHECKING:
    from buildsys.remote.driver import RemoteRun


def build_on(
    session: BuildSession, names: Sequence[str], options: Namespace, files: RunFiles
) -> int:
    """Run ``buildsys build --on`` for targets and groups; return its exit code.

    Raises: BuildsysError: the settings or systems are wrong.
    """
    command = ["build", "--continue"]
    flags = ("force", "remeasure", "no_bench")
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
