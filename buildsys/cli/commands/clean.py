"""buildsys clean: remove the files of targets, and their records."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from buildsys.cli.command import add_names
from buildsys.cli.model_filter import ModelFilter, add_filter
from buildsys.cli.session import Session
from buildsys.cli.target_files import remove_files
from buildsys.project.load import load_project


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
    session = Session(load_project(options.root))
    try:
        targets = session.in_order(session.select(options.names, only=ModelFilter.of(options)))
        remove_files(session, targets, sys.stdout, dry_run=options.dry_run)
        for target in targets if options.forget and not options.dry_run else ():
            session.forget(target)
    finally:
        session.close()
    return 0
