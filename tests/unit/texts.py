"""A text cache in memory."""

from __future__ import annotations


class Texts(dict[str, str]):
    """A text cache in memory."""

    def set(self, name: str, text: str, /) -> None:
        self[name] = text
