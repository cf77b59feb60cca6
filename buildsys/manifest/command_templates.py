"""References in the fields of commands: ``{inputs.X}`` in arguments, ``{commands.X.Y}`` in inputs.

Braces around anything but a dotted name are plain text, as in JSON.
"""

import re
from collections.abc import Callable, Iterator

FIGURES = "figures"
INPUTS_FOLDER, TEMPORARY_FOLDER = "inputs", "tmp"  # in the working folder
FIGURES_FILE = "figures.json"
RESERVED = (INPUTS_FOLDER, TEMPORARY_FOLDER, FIGURES_FILE)  # not names of outputs
LISTING = ".files"  # ends the name of a folder's listing, next to the folder
RESULT_FILE, LOG_FILE = "command.json", "command.log"  # next to the outputs
_REFERENCE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_.+-]*)?)\}")


def references(argument: str) -> Iterator[str]:
    """Yield the names in braces, such as ``inputs.model``."""
    yield from _REFERENCE.findall(argument)


def fill_in(argument: str, value: Callable[[str], str]) -> str:
    """Fill in the values of an argument's references."""
    return _REFERENCE.sub(lambda match: value(match[1]), argument)


def reference_of(text: str) -> tuple[str, str] | None:
    """Split a reference: ``{engines.X}`` is (engines, X); None for a file."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return None
    kind, _, name = match[1].partition(".")
    return kind, name
