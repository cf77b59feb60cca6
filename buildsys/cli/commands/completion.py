"""buildsys completion: a completion file for a shell."""

from __future__ import annotations

import importlib.util
import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from buildsys.cli.commands import COMMANDS
from buildsys.cli.project_root import find_project
from buildsys.cli.session import Session
from buildsys.errors import BuildsysError, Unavailable

SHELLS = ("bash", "zsh", "tcsh", "fish")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys completion``."""
    parser.add_argument("shell", choices=SHELLS)
    parser.epilog = (
        "prints a file with all commands, their options and, in a project, its present targets:\n"
        "buildsys completion bash > ~/.local/share/bash-completion/completions/buildsys"
    )


def run(options: Namespace) -> int:
    """Print the file.

    Raises: Unavailable: shtab is not installed.
    """
    if importlib.util.find_spec("shtab") is None:
        hint = "`pip install 'buildsys[completion]'` or `pip install shtab` installs it"
        raise Unavailable("shtab is not installed", hint)
    shtab = import_module("shtab")
    sys.stdout.write(shtab.complete(_all_commands(_targets()), shell=options.shell))
    return 0


def _all_commands(targets: list[str]) -> ArgumentParser:
    """Make one parser of all commands, with the names of targets as choices."""
    parser = ArgumentParser(prog="buildsys")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers()
    for name, purpose in COMMANDS.items():
        command = commands.add_parser(name, help=purpose)
        import_module(f"buildsys.cli.commands.{name}").add_arguments(command)
        for action in command._actions:
            if action.dest == "names" and targets:
                action.choices, action.help = targets, ""
    return parser


def _targets() -> list[str]:
    root = find_project(Path.cwd())
    if root is not None:
        with suppress(BuildsysError):  # broken manifests have no names
            session = Session.of_history(root)
            return [*session.project.models, *session.actions]
    return []
