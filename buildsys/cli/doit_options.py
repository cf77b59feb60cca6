"""Options of the commands that doit still runs."""

from __future__ import annotations

import getopt
from collections.abc import Mapping, Sequence
from typing import Any

from doit.cmd_base import Command
from doit.exceptions import InvalidCommand

from buildsys.cli.model_filter import ModelFilter
from buildsys.system.printable import printable


def option(name: str, text: str, *, flag: bool = False, **more: Any) -> dict[str, Any]:
    """Return a string option or a flag in doit's notation."""
    kind: dict[str, Any] = (
        {"type": bool, "default": False} if flag else {"type": str, "default": ""}
    )
    return {"name": name, "long": name.replace("_", "-"), "help": text, **kind, **more}


def filter_options() -> tuple[dict[str, Any], ...]:
    """Return the options of a command on several models."""
    # new lists, as doit adds the values to the default
    return (
        option("tag", "only models with this tag; may be repeated", type=list, default=[]),
        option("owner", "only models of this owner; may be repeated", type=list, default=[]),
    )


def filter_of(options: Mapping[str, Any]) -> ModelFilter:
    """Return the filter on the command line."""
    return ModelFilter(tuple(options.get("tag") or ()), tuple(options.get("owner") or ()))


def options_first(command: Any, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with all options before the names.

    Raises: InvalidCommand: an unknown option, or one without its value.
    """
    parser = command.cmdparser
    try:
        found, names = getopt.gnu_getopt(arguments, parser.get_short(), parser.get_long())
    except getopt.GetoptError as error:
        hint = f"run `{program_of(command)} help {command.name}` for its options"
        raise InvalidCommand(printable(f"{error}; {hint}")) from None
    flags = {name for name, _ in found if parser.get_option(name)[0].type is bool}
    options = [word for pair in found for word in (pair[:1] if pair[0] in flags else pair)]
    return [*options, "--", *names]


def program_of(command: Command) -> str:
    """Return the program of a command."""
    return "buildsys" if command.bin_name == "buildsys" else "doit"  # not `__main__.py`
