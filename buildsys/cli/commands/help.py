"""doit help: the commands of this project, by subject."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from doit.cmd_help import Help as DoitHelp
from doit.exceptions import InvalidCommand

from buildsys import __version__
from buildsys.cli.commands.doit_commands import DoitCommand

SECTIONS = {
    "Building": ("run", "nightly", "clean", "forget", "ignore", "repro", "debug"),
    "Targets": ("list", "info", "explain", "plan", "resolve"),
    "Reports and history": ("pages", "history", "compare"),
    "Graphs and operators": ("inspect", "diff", "netron", "ops", "stress"),
    "Installation and caches": ("doctor", "cache", "workers", "schema"),
    "Others": ("help", "tabcompletion"),
}
# of doit: they show or change its own database and file dependencies, which are not used here
HIDDEN = ("dumpdb", "reset-dep", "strace")
_TARGETS = """\
A target is named STAGE:MODEL[:VARIANT], MODEL:STAGE[:VARIANT] or MODEL:ENGINE; MODEL is everything
of a model, STAGE that stage of all models; * matches any text. Options may follow names.

  doit help COMMAND    the options of a command
  doit help TARGET     what a target does
  doit --version       the versions of buildsys and doit
"""


class Help(DoitCommand, DoitHelp):  # type: ignore[misc]  # doit has no type information
    """doit help."""

    doc_purpose = "show the commands, or the options of one"
    doc_usage = "[COMMAND | TARGET]"

    def other_names(self) -> Sequence[str]:
        """Return the commands."""
        return [name for name in self.cmds if name not in HIDDEN]

    def print_usage(self, cmds: Mapping[str, Any]) -> None:
        """Print the commands by section; those of other plugins follow."""
        out = sys.stdout
        out.write(f"buildsys {__version__}: verified inference engines from PyTorch models\n\n")
        out.write(f"  {'doit [TARGET ...]':<24}build targets, without a name everything\n")
        out.write(f"  {'doit COMMAND ...':<24}do something else\n")
        known = {name for names in SECTIONS.values() for name in names}
        sections = {title: list(names) for title, names in SECTIONS.items()}
        sections["Others"] += sorted(cmds.keys() - known - set(HIDDEN))
        for title, names in sections.items():
            out.write(f"\n{title}\n")
            for name in filter(cmds.__contains__, names):
                out.write(f"  doit {name:<19}{cmds[name].doc_purpose}\n")
        out.write(f"\n{_TARGETS}")

    def _execute(self, pos_args: Sequence[str]) -> bool:
        if not super()._execute(pos_args):
            raise InvalidCommand(not_found=pos_args[0])
        return True
