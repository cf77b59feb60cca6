"""Loader of dodo files for plain ``buildsys build``, with our version and help.

doit makes the loader before it does anything else. It has no other place to change the output of
``buildsys --version`` and ``buildsys --help``: it calls its own functions for both.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from doit import doit_cmd
from doit.cmd_base import DodoTaskLoader
from doit.exceptions import InvalidDodoFile

from buildsys.cli.doit_main import Main
from buildsys.system.entry_points import entry_points


class Loader(DodoTaskLoader):  # type: ignore[misc]  # doit has no type information
    """The loader of a dodo file."""

    def __init__(self) -> None:
        super().__init__()
        doit_cmd.DoitMain.print_version = staticmethod(Main.print_version)
        if sys.argv[1:2] == ["--help"]:
            from buildsys.cli.commands.help import Help  # it loads what doit has loaded anyway

            doit_cmd.Help = Help

    def setup(self, opt_values: Any) -> None:
        """Load the dodo file for a command of doit itself.

        Raises: InvalidDodoFile: our commands are unknown to doit, as the package is not installed.
        """
        if not entry_points(group="doit.LOADER", name="buildsys"):
            place = Path(__file__).resolve().parents[2]
            raise InvalidDodoFile(
                f"buildsys is imported from {place}, but not installed, so doit does not know its"
                " commands; install it with pip, or use `python -m buildsys` instead of doit"
            )
        super().setup(opt_values)
