"""Base of our commands: options, output, and one border for errors."""

from __future__ import annotations

import getopt
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

from doit.cmd_base import Command, opt_dodo
from doit.exceptions import InvalidCommand, InvalidDodoFile

from buildsys.cli.environment_variables import check_variables
from buildsys.cli.project_root import shown_text
from buildsys.errors import BuildsysError, UsageError
from buildsys.system.printable import printable, printable_line, use_plain_symbols
from buildsys.system.program_name import with_program
from buildsys.system.suggestions import nearest

INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143
Options = Mapping[str, Any]


def option(name: str, text: str, *, flag: bool = False, **more: Any) -> dict[str, Any]:
    """Return a string option or a flag in doit's notation."""
    kind: dict[str, Any] = (
        {"type": bool, "default": False} if flag else {"type": str, "default": ""}
    )
    return {"name": name, "long": name.replace("_", "-"), "help": text, **kind, **more}


def positive_integer(name: str, given: str) -> int:
    """Return the value of an option.

    Raises: UsageError: it is not a positive integer.
    """
    if not given.isdecimal() or int(given) < 1:
        problem = f"{name} expects a positive integer, found {given!r}"
        raise UsageError(problem, "write a number such as 5")
    return int(given)


JSON = option("json", "print one JSON document", flag=True)


class PlainCommand(Command, ABC):  # type: ignore[misc]  # doit has no type information
    """A command without a project."""

    options: ClassVar[tuple[dict[str, Any], ...]] = ()

    @property
    def cmd_options(self) -> tuple[dict[str, Any], ...]:
        """Doit's name for the options."""
        # doit adds values to the default of an option with a list
        return tuple({**one, "default": copy(one["default"])} for one in self.options)

    def help(self) -> str:
        """Return the help with commands of the program in use."""
        text: str = super().help()
        return with_program(text)

    @abstractmethod
    def perform(self, names: Sequence[str], options: Options) -> int:
        """Do the work, print to stdout and return the exit code."""

    def parse_execute(self, in_args: list[str]) -> Any:
        """Accept options after names as well: ``doit explain export:resnet50 --json``."""
        return super().parse_execute(options_first(self, in_args))

    def execute(self, params: Any, args: list[str]) -> int:
        """Run the command; an expected failure is one line."""
        use_plain_symbols(sys.stdout, sys.stderr)
        try:
            code = self.perform(args, params)
            sys.stdout.flush()  # a closed pipe is met here, not when Python exits
            return code
        except BuildsysError as error:
            if error.exit_code == UsageError.exit_code:
                raise InvalidCommand(printable(shown_text(str(error)))) from None
            sys.stderr.write(printable(shown_text(f"ERROR: {error}\n")))
            return error.exit_code
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            drop_unwritten()
            return BROKEN_PIPE
        except OSError as error:  # most likely a full disk
            problem = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
            sys.stderr.write(printable(f"ERROR: {problem}\n"))
            drop_unwritten()
            return BuildsysError.exit_code


class ProjectCommand(PlainCommand):
    """A command on the project around the dodo file."""

    @property
    def cmd_options(self) -> tuple[dict[str, Any], ...]:
        """Doit's name for the options."""
        return (opt_dodo, *super().cmd_options)

    @abstractmethod
    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Work in a project, print to stdout and return the exit code."""

    def perform(self, names: Sequence[str], options: Options) -> int:
        """Run the command in the folder of the dodo file."""
        dodo = Path(options["dodoFile"]).resolve()
        if not dodo.is_file():
            raise InvalidDodoFile(f"there is no {options['dodoFile']} here; name it with -f")
        check_variables(dodo.parent)
        return self.run(dodo.parent, names, options)


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


def build_command(program: str, model: str) -> str:
    """Return the command line that builds a model."""
    return f"{program} build {model}" if program == "buildsys" else f"{program} build:{model}"


def drop_unwritten() -> None:
    """Discard unwritable output; Python would complain about it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(document: Any) -> None:
    """Print one JSON document."""
    json.dump(document, sys.stdout, indent=2)  # ASCII: a file name may be text in no encoding
    sys.stdout.write("\n")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text."""
    sys.stdout.writelines(f"{printable_line(line)}\n" for line in lines)


def print_answer(options: Options, document: Any, lines: Iterable[str]) -> None:
    """Print the answer of a command as JSON or text."""
    if options["json"]:
        print_json(document)
    else:
        print_lines(lines)


def unknown_name(kind: str, name: str, known: Iterable[str], otherwise: str) -> UsageError:
    """Return the error for an unknown name, with the nearest known ones."""
    near = nearest(name, known)
    hint = f"nearest: {', '.join(near)}" if near else otherwise
    return UsageError(f"there is no {kind} {name!r}", hint)
