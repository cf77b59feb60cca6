"""buildsys workers: worker servers of this user, in all projects."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from buildsys.cli.command import print_lines
from buildsys.workers import registry


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys workers``."""
    parser.add_argument(
        "--stop",
        action="store_true",
        help="stop idle ones at once, the others after their run",
    )
    parser.add_argument(
        "--now",
        action="store_true",
        help="stop all of them at once, with the jobs they run",
    )


def run(options: Namespace) -> int:
    """Print a table of servers, or one line per stopped server."""
    if options.now or options.stop:
        lines = registry.format_stopped(registry.stop_servers(os.environ, now=options.now))
    else:
        lines = registry.format_running(registry.list_servers(os.environ))
    print_lines(lines)
    return 0
