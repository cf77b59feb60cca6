"""Texts of keys: a cache of them, and short forms that stand for all of a text."""

from __future__ import annotations

import hashlib
from typing import Protocol

_DIGITS = 16  # enough for people


class TextCache(Protocol):
    """A persistent mapping of names to texts.

    A name must determine its text.
    """

    def get(self, name: str, /) -> str | None:
        """Return the text stored under ``name``, or None."""

    def set(self, name: str, text: str, /) -> None:
        """Store ``text`` under ``name``."""


def short_digest(whole: bytes) -> str:
    """Return the first digits of the SHA-256 of ``whole``."""
    return hashlib.sha256(whole).hexdigest()[:_DIGITS]


def shortened_for_key(part: str, whole: bytes) -> str:
    """Complete ``part`` with a digest of ``whole`` if that is not all of it.

    Without it, a change of what is not shown would leave a stale result.
    """
    if part.encode(errors="surrogateescape") == whole.strip():
        return part
    return f"{part}… (all of it: {short_digest(whole)})"
