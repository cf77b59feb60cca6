"""The commands of plain ``buildsys build``, from any folder of a project.

They are entry points of the package, so a project does not list them in its configuration of doit.
doit has no project-wide hook: it looks for configuration and dodo.py in the current folder only.
Outside of our projects they are doit's commands, unchanged.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from doit import (
    cmd_clean,
    cmd_forget,
    cmd_help,
    cmd_ignore,
    cmd_info,
    cmd_list,
    cmd_run,
    doit_cmd,
)
from doit.cmd_base import DodoTaskLoader

from buildsys.cli.commands import COMMANDS
from buildsys.cli.doit_main import Main, commands_of, run_doit
from buildsys.cli.loader import Loader
from buildsys.cli.project_root import DODO, find_project

_LOADER_OPTIONS = {"dodoFile": "--file", "cwdPath": "--dir"}  # typed before the command


class _Command:
    """A command of ours in our projects, of doit elsewhere."""

    def __init__(self, **options: Any) -> None:
        here = Path.cwd()
        root = find_project(here)
        self._options = options
        self._in_root = root == here
        # doit takes another dodo file of this folder, one that is named, and a program's own loader
        self._is_ours = type(options["task_loader"]) in (DodoTaskLoader, Loader) and (
            self._in_root
            or (root is not None and not options["opt_vals"] and not (here / DODO).exists())
        )
        self.pdb = False  # read by doit after an error
        if not self._is_ours:
            super().__init__(**options)

    def parse_execute(self, in_args: list[str]) -> Any:
        """Run the command."""
        if not self._is_ours:
            return super().parse_execute(in_args)  # type: ignore[misc]  # of doit
        name, program = type(self).__name__.lower(), self._options["bin_name"]
        arguments = [name, *in_args]
        if name == "run" and in_args and in_args[0] in (*commands_of(program), *COMMANDS):
            arguments = in_args  # doit takes a command that it does not know for a target
        given = self._options["opt_vals"].items()
        typed = [
            f"{_LOADER_OPTIONS[key]}={value}" for key, value in given if key in _LOADER_OPTIONS
        ]
        if doit_cmd._CMDLINE_VARS:  # doit has removed all arguments with "="
            typed, arguments = [], sys.argv[1:]
        if not self._in_root or (
            arguments[0] in COMMANDS and arguments[0] not in commands_of(program)
        ):
            return run_doit(arguments, program=program)
        return Main(program=program, config=self._options["config"]).run([*typed, *arguments])


class Help(_Command, cmd_help.Help):  # type: ignore[misc]  # doit has no type information
    """doit help."""


class Run(_Command, cmd_run.Run):  # type: ignore[misc]
    """doit run."""


class List(_Command, cmd_list.List):  # type: ignore[misc]
    """doit list."""


class Info(_Command, cmd_info.Info):  # type: ignore[misc]
    """doit info."""


class Clean(_Command, cmd_clean.Clean):  # type: ignore[misc]
    """doit clean."""


class Forget(_Command, cmd_forget.Forget):  # type: ignore[misc]
    """doit forget."""


class Ignore(_Command, cmd_ignore.Ignore):  # type: ignore[misc]
    """doit ignore."""
