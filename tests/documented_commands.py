"""Commands shown in the documentation, and a check of their options without running them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from doit.cmd_base import DodoTaskLoader

from buildsys.cli.commands import COMMANDS
from buildsys.cli.doit_main import Main
from buildsys.cli.doit_options import options_first
from buildsys.cli.main import parse, parser_of
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
    if name in ("--version", "--help") or (program == "buildsys" and name == "help"):
        return
    if name in COMMANDS:
        if program == "doit":
            raise UsageError(f"doit has no command {name}", "it is one of buildsys")
        parse(parser_of(name)[1], arguments[1:])
        return
    commands = _commands(program)
    if name not in commands:
        if program == "buildsys":
            raise UsageError(f"buildsys has no command {name}", "")
        arguments = ["run", *arguments]
    command = commands[arguments[0]]
    command.cmdparser.parse(options_first(command, arguments[1:]))


@cache
def options_of(name: str) -> frozenset[str]:
    """Return the long and short options of a command."""
    if name in COMMANDS:
        actions = parser_of(name)[1]._actions
        return frozenset(text for action in actions for text in action.option_strings)
    options = _commands("buildsys")[name].cmdparser.options
    return frozenset(f"--{one.long}" for one in options if one.long)


@cache
def _commands(program: str) -> dict[str, Any]:
    main = Main(config={}, program=program)
    return {
        name: kind(
            task_loader=DodoTaskLoader(),
            cmds=main.get_cmds(),
            bin_name=program,
            config={},
            opt_vals={},
        )
        for name, kind in main.get_cmds().to_dict().items()
    }
