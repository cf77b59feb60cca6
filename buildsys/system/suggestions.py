"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable

_SHORTEST_PART = 3  # shorter parts suggest too many names


def nearest(name: str, known: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """List the known names most similar to ``name``, best first.

    Names that differ only in case follow, then (if ``count`` > 1) those that contain ``name``.
    """
    import difflib  # only needed for errors

    names = list(dict.fromkeys(known))
    close = difflib.get_close_matches(name, names, n=count, cutoff=cutoff)
    close += [other for other in names if other.lower() == name.lower()]
    if count > 1 and len(name) >= _SHORTEST_PART:
        close += [other for other in names if name in other]
    return list(dict.fromkeys(close))[:count]


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.5
) -> str:
    """Suggest the known names most similar to ``name``."""
    near = nearest(name, known, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
