"""Problems found in manifests, and suggestions of the nearest known name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.manifest.value_tree import FieldPath, ValueNode, ValueOrigin
from buildsys.manifest.value_tree import nearest as nearest_node
from buildsys.system.suggestions import nearest
from buildsys.system.urls import mask_text


@dataclass(frozen=True)
class Problem:
    """One sentence about one field; line and column are looked up later.

    ``of_key``: the error points at the field's name and not at its value.
    """

    origin: ValueOrigin
    text: str
    hint: str = ""
    of_key: bool = False


Problems = Iterator[Problem]


def problem_at(
    tree: ValueNode, path: FieldPath, text: str, hint: str = "", *, of_key: bool = False
) -> Problem:
    """Return a problem at ``path``, located in the file of the value.

    A field that no file set is located in its nearest parent.
    """
    node, missing = nearest_node(tree, path)
    return Problem(ValueOrigin(node.origin.file, (*node.origin.path, *missing)), text, hint, of_key)


def suggest(name: str, known: Iterable[str], *, what: str = "known") -> str:
    """Return ``did you mean X?`` or a list of known names."""
    names = list(dict.fromkeys(known))
    close = nearest(name, names, count=1)
    if close:
        return f"did you mean {close[0]}?"
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"{what}: {shown}" if names else ""


def suggest_file(path: Path) -> str:
    """Return ``did you mean X?`` for a similarly named file, else ""."""
    try:
        others = [entry for entry in path.parent.iterdir() if entry.suffix == path.suffix]
    except OSError:
        return ""
    close = nearest(path.stem, [other.stem for other in others], count=1)
    return f"did you mean {close[0]}{path.suffix}?" if close else ""


def expected(what: str, value: Any) -> str:
    """Return the sentence for a value of the wrong type or form."""
    return f"expected {what}, found {show_value(value)}"


def show_value(value: Any) -> str:
    """Return a short form of a value, recognizable to the manifest's author."""
    if isinstance(value, dict):
        return "a map" if value else "an empty map"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = mask_text(text) if "://" in text else text  # a URL in a wrong place may have a password
    text = "".join(character if character.isprintable() else "�" for character in text)
    return text if len(text) <= 60 else f"{text[:57]}…"
