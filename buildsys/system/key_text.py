"""Texts of keys that show only a part of what they stand for."""

from __future__ import annotations

import hashlib

_DIGITS = 16  # of a digest, for a text that people read


def short_digest(whole: bytes) -> str:
    """Return the first digits of the SHA-256 of ``whole``."""
    return hashlib.sha256(whole).hexdigest()[:_DIGITS]


def shortened_for_key(shown: str, whole: bytes) -> str:
    """Return ``shown``, with a digest of ``whole`` if that is not all of it.

    Without it, a change of what is not shown would leave a stale result.
    """
    if shown.encode(errors="surrogateescape") == whole.strip():
        return shown
    return f"{shown}… (all of it: {short_digest(whole)})"
