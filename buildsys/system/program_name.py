"""The program in the commands that messages suggest.

Messages are written for ``doit``, also by workers and in records, which outlive a run. They are
translated where they are printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

BUILDSYS, DOIT = "buildsys", "doit"
_OTHER_NAMES = {"infer": "run", "run": "build"}  # command of doit -> the same one of buildsys
_COMMAND = re.compile(r"\A(`?)doit(?: (infer|run)\b| (build):(?=[\w*])|(?![\w-]))")
_QUOTED = re.compile(r"`doit(?: [^`\n]*)?`")
_started = [DOIT]


@contextmanager
def started_as(program: str) -> Iterator[None]:
    """Let messages suggest commands of ``program``."""
    before, _started[0] = _started[0], program
    try:
        yield
    finally:
        _started[0] = before


def command_line(command: str) -> str:
    """Return a command of doit as one of the program that the user started."""
    if _started[0] == DOIT:
        return command
    return _COMMAND.sub(_of_buildsys, command)


def with_program(text: str) -> str:
    """Return a text whose `doit …` commands are those of the program that the user started."""
    if _started[0] == DOIT or "`doit" not in text:
        return text
    return _QUOTED.sub(lambda found: command_line(found[0]), text)


def _of_buildsys(found: re.Match[str]) -> str:
    quote, command, group = found.groups()
    words = f" {_OTHER_NAMES[command]}" if command else " build " if group else ""
    return f"{quote}{BUILDSYS}{words}"
