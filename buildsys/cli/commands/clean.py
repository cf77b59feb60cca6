"""buildsys clean: remove the files of targets, and their records."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from buildsys.cli.command import add_names, shown_path
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import ModelFilter, add_filter
from buildsys.project.plan import model_of
from buildsys.stages.table import REPORT
from buildsys.store.publish import refuse_links
from buildsys.system.printable import printable


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys clean``."""
    add_names(parser, "[TARGET ...]")
    parser.epilog = "without a TARGET, the files of all targets; the store keeps its copies"
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    parser.add_argument(
        "--forget", action="store_true", help="also drop the records, so that they are built again"
    )
    add_filter(parser)


def run(options: Namespace) -> int:
    """Print what is removed."""
    session = BuildSession.read_only(options.root, options.names)
    try:
        targets = session.in_order(session.select(options.names, only=ModelFilter.of(options)))
        remove_files(session, targets, dry_run=options.dry_run)
        for target in targets if options.forget and not options.dry_run else ():
            session.forget(target)
    finally:
        session.close()
    return session.exit_code


def remove_files(session: BuildSession, targets: Sequence[str], *, dry_run: bool) -> None:
    """Remove the files of targets, and the pages of removed reports.

    Raises: StageError: a folder is a link. OSError: a file cannot be removed.
    """
    build, actions = session.project.build, session.actions
    for target in targets:
        declared = {output.path for output in actions[target].outputs.values()}
        paths = {build / path for path in declared | session.executor.ledger.owned(target)}
        refuse_links(build, map(str, paths))
        for path in sorted({*paths, session.log(target)}):
            if path.is_file() or path.is_symlink():
                sys.stdout.write(f"{target} - removing {printable(shown_path(path))}\n")
                if not dry_run:
                    path.unlink(missing_ok=True)
                    _remove_empty_folders(path.parent, build)
    models = {model_of(target) for target in targets if actions[target].stage == REPORT}
    if models:
        from buildsys.cli.commands.pages import remove_pages

        for path in remove_pages(session, models, dry_run=dry_run):
            sys.stdout.write(f"removing {printable(shown_path(path))}\n")


def _remove_empty_folders(folder: Path, build: Path) -> None:
    with suppress(OSError):  # not empty
        while build in folder.parents:
            folder.rmdir()
            folder = folder.parent
