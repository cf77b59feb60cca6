"""Page of all commands with their options, from the table of commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from doit.cmd_base import DodoTaskLoader

from buildsys.cli.commands.help import SECTIONS
from buildsys.cli.main import PROGRAM, Main

_INTRODUCTION = """\
# Commands and options

Every command and option of `buildsys`, generated from the table of commands.
[Commands](../commands.md) explains them. `doit COMMAND` is the same in a project, but plain `doit`
and `doit run` build, and `doit infer` runs an engine.
Options may follow names. See also the
[environment variables](../commands.md#environment-variables).

"""
_DEFAULT = re.compile(r"\s*\[default: [^\]]+\]")  # has a column
_SHARED = ("task loader", "DB backend")  # doit's names of groups


def page() -> str:
    """Return the page in Markdown."""
    main = Main(config={})
    kinds = main.get_cmds().to_dict()
    parts, shared = [_INTRODUCTION], {}
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n\n")
        for name in filter(kinds.__contains__, names):
            command = kinds[name](
                task_loader=DodoTaskLoader(),
                cmds=main.get_cmds(),
                bin_name=PROGRAM,
                config={},
                opt_vals={},
            )
            options = [one for one in command.get_options() if one.short or one.long]
            shared |= {one.name: one for one in options if one.section in _SHARED}
            parts += _command(name, command, [one for one in options if one.section not in _SHARED])
    parts.append("## Options of doit\n\nCommands that load the project take these as well:\n\n")
    parts.append(_table(shared.values()))
    return "".join(parts)


def _command(name: str, command: Any, options: Iterable[Any]) -> Iterator[str]:
    usage = " ".join([PROGRAM, name, command.doc_usage or ""]).strip()
    yield f"### {name}\n\n{_sentence(command.doc_purpose)}\n\n```text\n{usage}\n```\n\n"
    if command.doc_description:
        yield f"```text\n{command.doc_description}\n```\n\n"
    yield _table(options)


def _table(options: Iterable[Any]) -> str:
    rows = "".join(map(_row, options))
    return f"| option | default | effect |\n|---|---|---|\n{rows}\n" if rows else ""


def _row(option: Any) -> str:
    forms = [f"-{option.short}"] * bool(option.short) + [f"--{option.long}"] * bool(option.long)
    forms[-1] += "" if option.type is bool else " VALUE"
    typed = ", ".join(f"`{form}`" for form in forms)
    shown = option.default if isinstance(option.default, (str, int)) else ""
    default = f"`{shown}`" if shown and shown is not True else ""
    text = " ".join(_DEFAULT.sub("", option.help).split()).replace("|", "\\|")
    return f"| {typed} | {default} | {_sentence(text)} |\n"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
