"""Entry points of the installed packages, read once: each reading opens a file per package."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoints
from importlib.metadata import entry_points as read_entry_points


def entry_points(*, group: str, name: str | None = None) -> EntryPoints:
    """Select the entry points of a group, or those with a name in it."""
    points = _read(tuple(sys.path)).select(group=group)
    return points if name is None else points.select(name=name)


@cache
def _read(path: tuple[str, ...]) -> EntryPoints:  # noqa: ARG001  # packages are found by it
    points = read_entry_points()
    if isinstance(points, EntryPoints):
        return points
    return EntryPoints(point for group in points.groups for point in points.select(group=group))
