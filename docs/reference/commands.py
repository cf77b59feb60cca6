"""Page of all commands with their options, from the table of commands."""

from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterable, Iterator
from itertools import chain
from textwrap import wrap

from buildsys.cli.commands import HIDDEN, SECTIONS
from buildsys.cli.main import parser_of

_COLUMNS = 95  # a block of this width is not cut at 1400 pixels
_INTRODUCTION = """\
# Commands and options

Every command and option of `buildsys`, generated from the table of commands.
[Commands](../commands.md) explains them. Options may follow names. See also the
[environment variables](../commands.md#environment-variables).

"""


def page() -> str:
    """Return the page in Markdown."""
    parts = [_INTRODUCTION]
    for title, names in {**SECTIONS, "Scripts": HIDDEN}.items():
        parts.append(f"## {title}\n\n")
        for name in names:
            parts += _command(name, parser_of(name)[1])
    return "".join(parts)


def _command(name: str, parser: ArgumentParser) -> Iterator[str]:
    usage = parser.format_usage().removeprefix("usage: ").strip()
    yield f"### {name}\n\n{parser.description}\n\n```text\n{usage}\n```\n\n"
    if parser.epilog:
        lines = chain.from_iterable(map(_wrap, parser.epilog.splitlines()))
        yield "```text\n" + "\n".join(lines) + "\n```\n\n"
    shown = [one for one in parser._actions if one.option_strings and one.help != SUPPRESS]
    yield _table(one for one in shown if one.dest != "help")


def _wrap(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return wrap(line, _COLUMNS, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _table(options: Iterable[Action]) -> str:
    rows = "".join(map(_row, options))
    return f"| option | default | effect |\n|---|---|---|\n{rows}\n" if rows else ""


def _row(option: Action) -> str:
    value = "" if option.nargs == 0 else " VALUE"
    forms = [*option.option_strings[:-1], f"{option.option_strings[-1]}{value}"]
    typed = ", ".join(f"`{form}`" for form in forms)
    default = f"`{option.default}`" if option.default and option.nargs != 0 else ""
    text = " ".join((option.help or "").split()).replace("|", "\\|")
    return f"| {typed} | {default} | {text[:1].upper()}{text[1:].rstrip('.')}. |\n"
