"""The state of a project for those who only look: nothing is written, set aside or made, whatever is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

from buildsys.store.state_db import TABLES, VERSION, Row, StateDb, Statement, warn_on_stderr


class StateView(StateDb):
    """Reads the state, also from a read-only folder. One that is missing or cannot be read counts as empty.

    What is written to it is dropped.
    """

    def __init__(self, path: Path, notify: Callable[[str], None] = warn_on_stderr) -> None:
        super().__init__(path, notify)
        self._view: sqlite3.Connection | None = None

    def read(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Return all rows of a query; none when the state is damaged, which is told once."""
        with self._guard:
            try:
                if self._view is None:
                    self._view = self._look() if self.path.exists() else _empty()
                return self._view.execute(query, values).fetchall()
            except (sqlite3.DatabaseError, OSError) as error:
                self.close()
                lost = "nothing is known of earlier builds"
                self._notify(f"the build state {self.path} cannot be read ({error}): {lost}")
                self._view = _empty()
                return self._view.execute(query, values).fetchall()

    def write(self, statements: Iterable[Statement]) -> None:
        """Drop what somebody who writes would keep."""

    def close(self) -> None:
        """Close the connection."""
        with self._guard:
            if self._view is not None:
                self._view.close()
                self._view = None

    def _look(self) -> sqlite3.Connection:
        """Open the file without leaving a trace.

        sqlite wants to write beside a database with a write-ahead log even to read it. ``immutable`` keeps it from
        that, and is right as long as there is no log: then nobody has it open. Where one way fails, the other may work.
        """
        ways = ["mode=ro&immutable=1", "mode=ro"]
        if self.path.with_name(self.path.name + "-wal").exists():
            ways.reverse()
        try:
            return self._open_as(ways[0])
        except sqlite3.OperationalError:
            return self._open_as(ways[1])

    def _open_as(self, way: str) -> sqlite3.Connection:
        address = f"{self.path.absolute().as_uri()}?{way}"
        connection = sqlite3.connect(
            address, uri=True, check_same_thread=False, isolation_level=None
        )
        try:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version != VERSION:
                raise sqlite3.DatabaseError(
                    f"it has version {version}, this buildsys writes {VERSION}"
                )
        except BaseException:
            connection.close()
            raise
        return connection


def _empty() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    with closing(connection.executescript(TABLES)):
        return connection
