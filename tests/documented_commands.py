"""Commands shown in the documentation, and a check of their options without running them."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from doit.cmd_base import DodoTaskLoader
from doit.cmd_clean import Clean
from doit.cmd_forget import Forget
from doit.cmd_ignore import Ignore
from doit.cmd_info import Info
from doit.cmd_list import List
from doit.cmd_run import Run

from buildsys.cli.commands import COMMANDS
from buildsys.cli.main import parse, parser_of
from buildsys.cli.target_names import STAGE_DOCS
from buildsys.errors import UsageError

PROGRAMS = ("buildsys", "doit")
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_SETTING = re.compile(r"[A-Z_]+=.*")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield language and text of the fenced blocks of a page."""
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield block["language"], block["text"]


def shown_commands(page: Path) -> Iterator[str]:
    """Yield the lines for a reader to type."""
    for language, text in blocks(page):
        for line in text.replace("\\\n", " ").splitlines():
            if language in ("console", "text") and line.startswith("$ "):
                yield line[2:]
            elif language in ("sh", "bash") and line.strip():
                yield line


def check_command(line: str) -> int:
    """Parse the commands of ours in a line; return their number.

    Raises: UsageError, CmdParseError or InvalidCommand: it would be refused.
    """
    count = 0
    for part in re.split(r"&&|;|\|", line):
        words = shlex.split(part, comments=True)
        while words and _SETTING.fullmatch(words[0]):
            del words[0]
        if words[:1] in (["buildsys"], ["doit"]):
            count += 1
            _parse(words[0], words[1:])
    return count


def _parse(program: str, arguments: list[str]) -> None:
    name = arguments[0] if arguments else ""
    if name in ("--version", "--help", "help"):
        return
    if program == "buildsys":
        if name not in COMMANDS:
            raise UsageError(f"buildsys has no command {name!r}")
        parse(parser_of(name)[1], arguments[1:])
        return
    commands = _doit_commands()
    if name in COMMANDS.keys() - commands.keys() - STAGE_DOCS.keys():
        raise UsageError(f"doit has no command {name}", "it is one of buildsys")
    if name not in commands:
        arguments = ["run", *arguments]
    _, names = commands[arguments[0]].cmdparser.parse(arguments[1:])
    if options := [name for name in names if name.startswith("-")]:
        raise UsageError(f"doit takes options before names, found {options[0]}")


@cache
def options_of(name: str) -> frozenset[str]:
    """Return the long and short options of a command."""
    actions = parser_of(name)[1]._actions
    return frozenset(text for action in actions for text in action.option_strings)


@cache
def _doit_commands() -> dict[str, Any]:
    """Make doit's own commands."""
    options: dict[str, Any] = {"task_loader": DodoTaskLoader(), "config": {}, "opt_vals": {}}
    return {
        kind.get_name(): kind(cmds=[], bin_name="doit", **options)
        for kind in (Run, List, Info, Clean, Forget, Ignore)
    }
