"""doit with our commands only, from any folder of a project."""

from __future__ import annotations

import configparser
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from doit import doit_cmd, plugin
from doit.cmd_base import DodoTaskLoader
from doit.plugin import PluginDict, PluginEntry
from doit.version import VERSION

from buildsys import __version__
from buildsys.cli.command import drop_unwritten
from buildsys.cli.commands import COMMANDS
from buildsys.cli.project_root import enter_project
from buildsys.errors import UsageError
from buildsys.system.entry_points import entry_points
from buildsys.system.printable import printable

plugin.entry_points = entry_points  # doit would read them again for each kind of plugin
PROGRAM = "buildsys"
_FOLDER = "buildsys.cli.commands"
# doit has targets `build` and `gate`, and its own `run` builds: some commands have two names
_OF_BUILDSYS = {"build": f"{_FOLDER}.build:Build"}
_OF_DOIT = {"run": f"{_FOLDER}.build:Run"}
_OF_BOTH = {
    "help": f"{_FOLDER}.help:Help",
    "nightly": f"{_FOLDER}.nightly.command:Nightly",
    "list": f"{_FOLDER}.doit_commands:List",
    "info": f"{_FOLDER}.doit_commands:Info",
    "clean": f"{_FOLDER}.doit_commands:Clean",
    "forget": f"{_FOLDER}.doit_commands:Forget",
    "ignore": f"{_FOLDER}.doit_commands:Ignore",
    "tabcompletion": "doit.cmd_completion:TabCompletion",
}


class Main(doit_cmd.DoitMain):  # type: ignore[misc]  # doit has no type information
    """Doit's command line with our commands, without plugins of other packages."""

    def __init__(
        self,
        task_loader: Any = None,
        *,
        program: str = PROGRAM,
        config: dict[str, Any] | None = None,
    ) -> None:
        if config is None:
            super().__init__()
        else:  # read already
            self.config = config
        if program == PROGRAM and "run" in self.config:  # options in the configuration of doit
            self.config.setdefault("build", self.config.pop("run"))
        self.task_loader = task_loader or DodoTaskLoader()
        self.BIN_NAME = program

    def get_cmds(self) -> PluginDict:
        """Return the commands, without importing them."""
        found = PluginDict()
        for name, place in commands_of(self.BIN_NAME).items():
            found[name] = PluginEntry("COMMAND", name, place)
        return found

    def process_args(self, cmd_args: list[str]) -> list[str]:
        """Build without a command; keep arguments with "=", which doit takes for its variables."""
        builds = cmd_args[:1] == [] or cmd_args[0] not in commands_of(self.BIN_NAME)
        return ["build", *cmd_args] if builds and self.BIN_NAME == PROGRAM else cmd_args

    @staticmethod
    def print_version() -> None:
        """Print the versions of buildsys and doit, with their folders."""
        ours, doits = Path(__file__).resolve().parents[1], Path(doit_cmd.__file__).resolve().parent
        try:
            sys.stdout.write(f"buildsys {__version__} ({ours})\n")
            sys.stdout.write(f"doit {'.'.join(map(str, VERSION))} ({doits})\n")
            sys.stdout.flush()
        except BrokenPipeError:  # as in `buildsys --version | true`
            drop_unwritten()


def commands_of(program: str) -> dict[str, str]:
    """Return the places of the commands of ``buildsys`` or ``buildsys build`` by name."""
    return {**(_OF_BUILDSYS if program == PROGRAM else _OF_DOIT), **_OF_BOTH}


def run_doit(arguments: Sequence[str], *, program: str = PROGRAM) -> int:
    """Run a command of doit; return its exit code."""
    return _run([*arguments], program)


def _run(arguments: list[str], program: str) -> int:
    if program != PROGRAM and arguments and arguments[0] in {*COMMANDS} - {"run"}:
        sys.stderr.write(
            f"ERROR: doit has no {arguments[0]}: buildsys {arguments[0]} is the command\n"
        )
        return UsageError.exit_code
    if arguments[:1] in (["--help"], ["-h"]):
        arguments = ["help"]
    if _runs_anywhere(arguments):
        command = Main(program=program, config={})
    else:
        try:
            enter_project()
            command = Main(program=program)
        except (UsageError, OSError) as error:
            sys.stderr.write(printable(f"ERROR: {error}\n"))
            return UsageError.exit_code
        except (ValueError, configparser.Error) as error:
            problem = f"cannot read pyproject.toml or doit.cfg: {error}".splitlines()[0]
            sys.stderr.write(printable(f"ERROR: {problem}; correct it, doit reads both\n"))
            return UsageError.exit_code
    code: int = command.run(arguments)
    return code


def _runs_anywhere(arguments: Sequence[str]) -> bool:
    """Check for commands without a project."""
    if arguments[:1] == ["help"]:
        return not arguments[1:] or arguments[1] in commands_of(PROGRAM)
    return arguments[:1] == ["--version"]
