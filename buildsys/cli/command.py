"""What commands share: options, the project around the folder, paths, output, errors."""

import json
import os
import re
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from buildsys.errors import UsageError
from buildsys.project.settings import SETTINGS_FILE, has_settings
from buildsys.system.printable import nearest, printable_line

DODO = "dodo.py"
PROJECT = (
    f"a folder with {DODO} or {SETTINGS_FILE} of buildsys, or [tool.buildsys] in pyproject.toml"
)
_IMPORT = re.compile(rb"^\s*(from|import)\s+buildsys\b", re.MULTILINE)
_started_in: list[Path] = []  # the folder of the user, once the project is another one


def add_names(parser: ArgumentParser, usage: str) -> None:
    """Accept any number of names as ``options.names``; the help shows ``usage``."""
    parser.usage = f"%(prog)s {usage} [OPTION ...]"
    parser.add_argument("names", nargs="*", help=SUPPRESS)


def add_json(parser: ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def positive_integer(text: str) -> int:
    """Parse the value of an option. Raises: ArgumentTypeError: it is not a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        problem = f"expects a positive integer, found {text!r}; write a number such as 5"
        raise ArgumentTypeError(problem)
    return int(text)


def print_json(document: Any) -> None:
    """Print one JSON document."""
    json.dump(document, sys.stdout, indent=2)  # ASCII: a file name may be text in no encoding
    sys.stdout.write("\n")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text."""
    sys.stdout.writelines(f"{printable_line(line)}\n" for line in lines)


def print_answer(options: Namespace, document: Any, lines: Iterable[str]) -> None:
    """Print the answer of a command as JSON or text."""
    if options.json:
        print_json(document)
    else:
        print_lines(lines)


def unknown_name(kind: str, name: str, names: Iterable[str], otherwise: str) -> UsageError:
    """Describe an unknown name, with the nearest of ``names``."""
    near = nearest(name, names)
    hint = f"nearest: {', '.join(near)}" if near else otherwise
    return UsageError(f"there is no {kind} {name!r}", hint)


def find_project(folder: Path) -> Path | None:
    """Find the nearest project at or above ``folder``."""
    return next(filter(is_project, (folder, *folder.parents)), None)


def is_project(folder: Path) -> bool:
    """Check for settings, or a dodo file with our tasks."""
    return has_own_dodo(folder) or has_settings(folder)


def has_own_dodo(folder: Path) -> bool:
    """Check for a dodo file that imports us, in contrast to another use of doit."""
    try:
        return bool(_IMPORT.search((folder / DODO).read_bytes()))
    except OSError:
        return False


def enter_project() -> None:
    """Change to the project around the current folder. Raises: UsageError: there is none."""
    here = Path.cwd()
    root = find_project(here)
    if root is None:
        problem = f"{here} is not in a project ({PROJECT})"
        raise UsageError(problem, "change to one, or make this folder one with `buildsys init`")
    if root != here:
        _started_in[:] = [here]
        os.chdir(root)
        sys.stderr.write(f"in {root}\n")


def typed_path(name: str) -> Path:
    """Locate a file named on the command line, relative to the user's folder."""
    path = Path(name)
    if not _started_in or path.is_absolute():
        return path
    return Path(os.path.relpath(_started_in[0] / path))


def project_name(root: Path, typed: str) -> str:
    """Name a typed file or folder as a manifest does; outside, an absolute one stays so."""
    path = Path(os.path.abspath(typed_path(typed)))  # noqa: PTH100 - links stay
    is_absolute = Path(typed).is_absolute() and not path.is_relative_to(root)
    return str(path) if is_absolute else os.path.relpath(path, root)


def shown_path(path: Path | str) -> str:
    """Write a path relative to the user's folder, or the absolute one if that is shorter."""
    return min(os.path.relpath(path, *_started_in), str(Path(path).absolute()), key=len)
