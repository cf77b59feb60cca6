"""doit's loader, with our version and help.

doit makes the loader before it does anything else. It has no other place to change the output of
``doit --version`` and ``doit --help``: it calls its own functions for both.
"""

from __future__ import annotations

import sys
from pathlib import Path

from doit import doit_cmd
from doit.cmd_base import DodoTaskLoader
from doit.version import VERSION

from buildsys import __version__


class Loader(DodoTaskLoader):  # type: ignore[misc]  # doit has no type information
    """The loader of a dodo file."""

    def __init__(self) -> None:
        super().__init__()
        doit_cmd.DoitMain.print_version = staticmethod(print_version)
        if sys.argv[1:2] == ["--help"]:
            from buildsys.cli.commands.help import Help  # it loads what doit has loaded anyway

            doit_cmd.Help = Help


def print_version() -> None:
    """Print the versions of buildsys and doit, with their folders."""
    ours, doits = Path(__file__).resolve().parents[1], Path(doit_cmd.__file__).resolve().parent
    sys.stdout.write(f"buildsys {__version__} ({ours})\n")
    sys.stdout.write(f"doit {'.'.join(map(str, VERSION))} ({doits})\n")
