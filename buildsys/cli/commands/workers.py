"""doit workers: worker servers of this user, in all projects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from buildsys.cli.command import Options, ProjectCommand, option, print_lines
from buildsys.errors import UsageError
from buildsys.workers import registry


class Workers(ProjectCommand):
    """List or stop worker servers."""

    doc_purpose = "list the worker servers that wait for the next run, or stop them"
    options = (
        option("stop", "stop idle ones at once, the others after their run", flag=True),
        option("now", "stop all of them at once, with the jobs they run", flag=True),
    )

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Print a table of servers, or one line per stopped server."""
        del root
        if names:
            raise UsageError("workers takes no arguments", "type it without a name")
        if options["now"] or options["stop"]:
            lines = registry.format_stopped(registry.stop_servers(os.environ, now=options["now"]))
        else:
            lines = registry.format_running(registry.list_servers(os.environ))
        print_lines(lines)
        return 0
