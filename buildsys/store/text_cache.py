"""A cache of texts by name, in the state database."""

from __future__ import annotations

from buildsys.store.state_db import StateDb


class StateTextCache:
    """A ``TextCache`` in the state database."""

    def __init__(self, db: StateDb) -> None:
        self._db = db
        self._known: dict[str, str] = {}

    def get(self, name: str, /) -> str | None:
        """Return the text stored under ``name``, or None."""
        if name not in self._known:
            # the table is named after its first use: the imports of a source file
            rows = self._db.read("SELECT imports FROM source_imports WHERE digest = ?", (name,))
            if not rows:
                return None
            self._known[name] = rows[0][0]
        return self._known[name]

    def set(self, name: str, text: str, /) -> None:
        """Store ``text`` under ``name``."""
        self._known[name] = text
        self._db.write([("INSERT OR REPLACE INTO source_imports VALUES (?, ?)", (name, text))])
