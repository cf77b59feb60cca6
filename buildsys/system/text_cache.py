"""A cache of texts by name, kept between runs by the store."""

from __future__ import annotations

from typing import Protocol


class TextCache(Protocol):
    """A persistent mapping of names to texts.

    A name must determine its text.
    """

    def get(self, name: str, /) -> str | None:
        """Return the text stored under ``name``, or None."""

    def set(self, name: str, text: str, /) -> None:
        """Store ``text`` under ``name``."""
