"""Content digests of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK_BYTES = 1 << 20


def sha256_of(*files: Path) -> str:
    """Return the sha256 of a file's content in hex, or of several files one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()
