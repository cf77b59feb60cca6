"""The command ``buildsys``: one module with ``add_arguments`` and ``run`` per command."""

# ruff: noqa: E402 - Ctrl-C must not interrupt an import

from buildsys.cli.interrupts import INTERRUPTED, end_at_interrupt, raise_below

end_at_interrupt()

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from buildsys import __version__
from buildsys.cli.command import enter_project, unknown_name
from buildsys.cli.commands import COMMANDS, HIDDEN, SECTIONS
from buildsys.cli.console.streams import check_output, guard_streams
from buildsys.errors import BuildsysError, UsageError, describe_os_error
from buildsys.system.printable import nearest, printable

PROGRAM = "buildsys"
_RUNS = ("build", "nightly")  # their exit codes are about targets, not about their output
_ALL = "--all"
_ANYWHERE = ("init", "completion")  # commands without a project
_TARGETS_TEXT = """\
A target is named STAGE:MODEL[:VARIANT], MODEL:STAGE[:VARIANT] or MODEL:ENGINE; MODEL is everything
of a model, STAGE that stage of all models; * matches any text. Options may follow names.

  buildsys help COMMAND    the options of a command
  buildsys help --all      also {hidden}, …
  buildsys --version       the versions of buildsys and doit
"""


class Parser(ArgumentParser):
    """An argument parser whose errors are usage errors."""

    def error(self, message: str) -> NoReturn:
        """Raise the error for main."""
        hint = f"run `{PROGRAM} help {self.prog.split()[-1]}` for its options"
        raise UsageError(message.removeprefix("argument "), hint)


def main() -> None:
    """Run the command line in the project around the current folder."""
    if sys.argv[1:2] == ["job"]:  # typed by the driver of a build on other machines
        from buildsys.remote.job import main as run_job

        sys.exit(run_job(sys.argv[2:]))
    sys.exit(run(sys.argv[1:]))


@raise_below
def run(words: Sequence[str]) -> int:
    """Run a command and return its exit code; an expected failure is one line."""
    guard_streams()
    try:
        code = _dispatch(words)
        return code if words[:1] and words[0] in _RUNS else check_output(code)
    except BuildsysError as error:
        sys.stderr.write(printable(f"ERROR: {error}\n"))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # most likely a full disk
        sys.stderr.write(printable(f"ERROR: {describe_os_error(error)}\n"))
        return BuildsysError.exit_code


def _dispatch(words: Sequence[str]) -> int:
    name, *arguments = words or ["help"]
    if name == "--version":
        return _print_versions()
    if name in ("help", "--help", "-h"):
        if arguments in ([], [_ALL]):
            return _help(SECTIONS | ({"Further commands": HIDDEN} if arguments else {}))
        return _dispatch([arguments[0], "--help"])
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS, f"`{PROGRAM} help {_ALL}` lists them")
    return run_command(name, arguments)


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Parse the arguments of a command and run it.

    Raises: BuildsysError: wrong arguments, or the command failed.
    """
    module, parser = parser_of(name)
    if not {"-h", "--help"}.isdisjoint(arguments):
        parser.print_help()
        return 0
    options = parse(parser, arguments)
    if name not in _ANYWHERE:
        from buildsys.cli.environment_variables import check_variables

        needs_project = getattr(module, "needs_project", lambda _: True)
        if needs_project(options):
            enter_project()
        options.root = Path.cwd()
        check_variables(options.root)
    code: int = module.run(options)
    return code


def parser_of(name: str) -> tuple[Any, ArgumentParser]:
    """Import the module of a command and make its parser."""
    module = import_module(f"buildsys.cli.commands.{name}")
    purpose = COMMANDS[name]
    parser = Parser(
        prog=f"{PROGRAM} {name}",
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return module, parser


def parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """Parse options and names in any order.

    Raises: UsageError: an unknown option or a wrong value, with the nearest options.
    """
    options, others = parser.parse_known_intermixed_args([*arguments])
    if not others:
        return options
    name, command = others[0].partition("=")[0], parser.prog.split()[-1]
    if not name.startswith("-"):
        raise UsageError(f"{command} takes no arguments, found {name!r}", "type it without a name")
    near = nearest(name, [text for action in parser._actions for text in action.option_strings])
    hint = f"nearest: {', '.join(near)}; " if near else ""
    hint += f"run `{PROGRAM} help {command}` for its options"
    raise UsageError(f"{command} has no option {name}", hint)


def _help(sections: Mapping[str, Mapping[str, str]]) -> int:
    """Print commands by section."""
    lines = [f"buildsys {__version__}: verified inference engines from PyTorch models"]
    for title, commands in sections.items():
        lines += ["", title, *(f"  {name:<12}{purpose}" for name, purpose in commands.items())]
    sys.stdout.write("\n".join([*lines, "", _TARGETS_TEXT.format(hidden=", ".join([*HIDDEN][:6]))]))
    return 0


def _print_versions() -> int:
    """Print the versions of buildsys and doit, with their folders."""
    import doit
    from doit.version import VERSION

    ours, doits = Path(__file__).resolve().parents[1], Path(doit.__file__).resolve().parent
    sys.stdout.write(f"buildsys {__version__} ({ours})\n")
    sys.stdout.write(f"doit {'.'.join(map(str, VERSION))} ({doits})\n")
    return 0
