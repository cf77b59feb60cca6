"""buildsys completion: a completion file for a shell."""

import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from buildsys.cli.command import find_project
from buildsys.cli.commands import COMMANDS
from buildsys.cli.session import BuildSession
from buildsys.errors import BuildsysError, Unavailable


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys completion``."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh", "fish"))
    parser.epilog = (
        "prints a file with all commands, their options and, in a project, its present targets:\n"
        "buildsys completion bash > ~/.local/share/bash-completion/completions/buildsys"
    )


def run(options: Namespace) -> int:
    """Print the file. Raises: Unavailable: shtab is not installed."""
    try:
        shtab = import_module("shtab")
    except ImportError:
        raise Unavailable("shtab is not installed", "`pip install shtab` installs it") from None
    targets: list[str] = []
    if root := find_project(Path.cwd()):
        with suppress(BuildsysError):  # broken manifests have no names
            session = BuildSession.of_history(root)
            targets = [*session.project.models, *session.actions]
    parser = ArgumentParser(prog="buildsys")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers()
    for name, purpose in COMMANDS.items():
        command = commands.add_parser(name, help=purpose)
        import_module(f"buildsys.cli.commands.{name}").add_arguments(command)
        for action in command._actions:
            if action.dest == "names" and targets:
                action.choices, action.help = targets, ""
    sys.stdout.write(shtab.complete(parser, shell=options.shell))
    return 0
