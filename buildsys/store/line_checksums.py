"""What the lines of small source files were, by the digest of the file: enough to tell the first one that differs."""

from __future__ import annotations

import zlib
from pathlib import Path

from buildsys.store.state_db import StateDb

_MAX_BYTES = 1 << 20  # a larger file is data
_MAX_LINES = 20_000
_KEPT_FILES = 10_000
_LINE_BYTES = 4  # a checksum; that two lines have the same costs a line number, nothing else
_PRUNE = "DELETE FROM source_lines WHERE seq <= (SELECT max(seq) FROM source_lines) - ?"


class LineMemo:
    """Remembers the checksums of lines, four bytes each."""

    def __init__(self, db: StateDb) -> None:
        self._db = db
        self._known: set[str] = set()

    def keep(self, digest: str, path: Path) -> None:
        """Remember the lines of a file whose digest is ``digest``, if it is a small text."""
        if digest in self._known:
            return
        self._known.add(digest)
        if not self._db.read("SELECT 1 FROM source_lines WHERE digest = ?", (digest,)):
            lines = _checksums(path)
            if lines is not None:
                insert = "INSERT OR IGNORE INTO source_lines (digest, lines) VALUES (?, ?)"
                self._db.write([(insert, (digest, lines)), (_PRUNE, (_KEPT_FILES,))])

    def first_change(self, digest: str, path: Path) -> int | None:
        """Return the first line of a file that was not there under ``digest``, counted from 1; None: not known."""
        rows = self._db.read("SELECT lines FROM source_lines WHERE digest = ?", (digest,))
        return _first_difference(rows[0][0], _checksums(path)) if rows else None


def first_changed_line(old: Path, new: Path) -> int | None:
    """Return the first line of a file that is not in another one, counted from 1; None: they are no small texts."""
    return _first_difference(_checksums(old), _checksums(new))


def _first_difference(old: bytes | None, new: bytes | None) -> int | None:
    if old is None or new is None or old == new:
        return None
    shorter = min(len(old), len(new))
    same = next(
        (i for i in range(0, shorter, _LINE_BYTES) if old[i : i + 4] != new[i : i + 4]), shorter
    )
    return (
        min(same, len(new) - _LINE_BYTES) // _LINE_BYTES + 1
    )  # where lines are gone at the end: the last one


def _checksums(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError:
        return None
    lines = content.split(b"\n")
    if len(content) > _MAX_BYTES or len(lines) > _MAX_LINES or b"\0" in content:
        return None
    return b"".join(zlib.crc32(line).to_bytes(_LINE_BYTES, "big") for line in lines)
