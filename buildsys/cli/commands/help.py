"""buildsys help: the commands of this project, by subject."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from doit.cmd_help import Help as DoitHelp
from doit.exceptions import InvalidCommand

from buildsys import __version__
from buildsys.cli.commands.doit_commands import DoitCommand
from buildsys.cli.doit_main import Main
from buildsys.cli.doit_options import program_of

SECTIONS = {
    "Building": ("build", "nightly", "clean", "forget", "ignore"),
    "Targets": ("list", "info"),
    "Others": ("help", "tabcompletion"),
}
_TARGETS = """\
A target is named STAGE:MODEL[:VARIANT], MODEL:STAGE[:VARIANT] or MODEL:ENGINE; MODEL is everything
of a model, STAGE that stage of all models; * matches any text. Options may follow names.

  {program} help COMMAND    the options of a command
  {program} help TARGET     what a target does
  {program} --version       the versions of buildsys and doit
"""


class Help(DoitCommand, DoitHelp):  # type: ignore[misc]  # doit has no type information
    """doit help."""

    doc_purpose = "show the commands, or the options of one"
    doc_usage = "[COMMAND | TARGET]"

    def other_names(self) -> Sequence[str]:
        """Return the commands."""
        return list(self.cmds)

    def print_usage(self, cmds: Mapping[str, Any]) -> None:
        """Print the commands by section."""
        del cmds  # those of doit for `buildsys --help`
        program, out = program_of(self), sys.stdout
        commands = Main(program=program, config={}).get_cmds().to_dict()
        out.write(f"buildsys {__version__}: verified inference engines from PyTorch models\n\n")
        width = len(program) + 20
        out.write(
            f"  {f'{program} [TARGET ...]':<{width}}build targets, without a name everything\n"
        )
        out.write(f"  {f'{program} COMMAND ...':<{width}}do something else\n")
        for title, names in SECTIONS.items():
            out.write(f"\n{title}\n")
            for name in filter(commands.__contains__, names):
                out.write(f"  {f'{program} {name}':<{width}}{commands[name].doc_purpose}\n")
        out.write(f"\n{_TARGETS.format(program=program)}")

    def _execute(self, pos_args: Sequence[str]) -> bool:
        if not super()._execute(pos_args):
            raise InvalidCommand(not_found=pos_args[0])
        return True
