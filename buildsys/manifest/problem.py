"""Sentences about wrong values, and suggestions of the nearest known name."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from buildsys.errors import ManifestError
from buildsys.system.printable import mask_text, nearest

Problems = Iterator[ManifestError]
_MOST_NAMES = 12  # in a hint


def suggest(name: str, names: Iterable[str], *, what: str = "known") -> str:
    """Suggest ``did you mean X?``, or list the names."""
    names = list(dict.fromkeys(names))
    if close := nearest(name, names, count=1):
        return f"did you mean {close[0]}?"
    listed = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    return f"{what}: {listed}" if names else ""


def suggest_file(path: Path) -> str:
    """Suggest a similarly named file of the same folder, else ""."""
    names = [file.stem for file in path.parent.glob(f"*{path.suffix}") if file != path]
    close = nearest(path.stem, names, count=1)
    return f"did you mean {close[0]}{path.suffix}?" if close else ""


def expected(what: str, value: Any) -> str:
    """Describe a value of the wrong type or form."""
    return f"expected {what}, found {show_value(value)}"


def show_value(value: Any) -> str:
    """Shorten a value, recognizably to the manifest's author."""
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
