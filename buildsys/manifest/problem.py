"""What is wrong with a manifest, before its line and column are looked up; and the nearest known name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.manifest.value_tree import Key, Node, Origin
from buildsys.manifest.value_tree import nearest as nearest_node
from buildsys.system.suggestions import nearest


@dataclass(frozen=True)
class Problem:
    """One sentence about one place; ``of_key`` says that the key is wrong and not its value."""

    origin: Origin
    text: str
    hint: str = ""
    of_key: bool = False


def problem_at(tree: Node, key: Key, text: str, hint: str = "", *, of_key: bool = False) -> Problem:
    """Return a problem of the value at ``key`` of a tree, placed in the file that set it.

    The part of ``key`` that nobody set is added to the key of the nearest value around it.
    """
    node, missing = nearest_node(tree, key)
    origin = Origin(node.origin.file, (*node.origin.key, *missing))
    return Problem(origin, text, hint, of_key)


def suggest(name: str, known: Iterable[str], *, what: str = "known") -> str:
    """Return ``did you mean X?`` for a near miss, else a list of what is known."""
    names = list(dict.fromkeys(known))
    close = nearest(name, names, count=1)
    if close:
        return f"did you mean {close[0]}?"
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"{what}: {shown}" if names else ""


def suggest_file(path: Path) -> str:
    """Return ``did you mean X?`` for a file of a like name in the folder of ``path``, else an empty string."""
    try:
        beside = [entry for entry in path.parent.iterdir() if entry.suffix == path.suffix]
    except OSError:
        return ""
    close = nearest(path.stem, [entry.stem for entry in beside], count=1)
    return f"did you mean {close[0]}{path.suffix}?" if close else ""


def show_value(value: Any) -> str:
    """Return a value as a manifest's author would recognise it, short."""
    if isinstance(value, dict):
        return "a map" if value else "an empty map"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = "".join(character if character.isprintable() else "�" for character in text)
    return text if len(text) <= 60 else f"{text[:57]}…"
