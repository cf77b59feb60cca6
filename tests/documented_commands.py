"""Commands shown in the documentation, and a check of their options without running them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from doit.cmd_base import DodoTaskLoader

from buildsys.cli.command import options_first
from buildsys.cli.main import Main

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

    Raises: InvalidCommand: an unknown option, or one without its value.
    """
    found = 0
    for part in re.split(r"&&|;|\|", line):
        words = shlex.split(part, comments=True)
        while words and _SETTING.fullmatch(words[0]):
            del words[0]
        if words[:1] in (["buildsys"], ["doit"]):
            found += 1
            _parse(words[0], words[1:])
    return found


def _parse(program: str, arguments: list[str]) -> None:
    if arguments[:1] == ["--version"]:
        return
    commands = _commands(program)
    if any(word.startswith("inspect:") for word in arguments):
        arguments = ["inspect", *arguments]
    if not arguments or arguments[0] not in commands:
        arguments = ["build" if program == "buildsys" else "run", *arguments]
    command = commands[arguments[0]]
    command.cmdparser.parse(options_first(command, arguments[1:]))


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
