"""The sessions of one engine, one for each running call."""

from __future__ import annotations

from contextlib import suppress
from threading import Condition

from buildsys.backends.interface import Session
from buildsys.errors import EngineError, StageError


class SessionPool:
    """Sessions for concurrent calls, made on demand."""

    def __init__(self, engine: str, session: Session, limit: int | None = None) -> None:
        """Take over a session; further ones are its duplicates, ``limit`` in all."""
        self._engine = engine
        self._first = session
        self._limit = limit
        self._idle = [session]  # the most recently used last: its memory is in the caches
        self._all = [session]
        self._is_closed = False
        self._waiting = 0
        self._changed = Condition()

    def acquire(self) -> Session:
        """Take an idle session, make another one, or wait.

        Raises: EngineError: the pool is closed.
        """
        try:
            session = self._idle.pop()  # atomic, and three times as fast as under the lock
        except IndexError:
            session = self._wait()
        if self._is_closed:
            self.release(session)
            raise self._closed()
        return session

    def _wait(self) -> Session:
        """Wait for a session; make another one within the limit."""
        with self._changed:
            self._waiting += 1  # before the look at the idle ones: ``release`` takes no lock
            try:
                while not self._is_closed:
                    with suppress(IndexError):
                        return self._idle.pop()
                    if self._limit is None or len(self._all) < self._limit:
                        try:
                            session = self._first.duplicate()
                            self._all.append(session)
                            return session
                        except StageError:  # e.g. no memory for another execution context
                            self._limit = len(self._all)
                    else:
                        self._changed.wait()
            finally:
                self._waiting -= 1
        raise self._closed()

    def _closed(self) -> EngineError:
        problem = f"{self._engine} is closed"
        return EngineError(problem, "load it again, or close it after its last call")

    def release(self, session: Session) -> None:
        """Take a session back."""
        self._idle.append(session)
        if self._waiting or self._is_closed:
            with self._changed:
                self._changed.notify_all()

    def close(self, *, wait: bool = True) -> None:
        """Free all sessions, the first one last; wait for running calls before."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
            while wait and len(self._idle) < len(self._all):
                self._changed.wait()
            for session in self._all:
                if session is not self._first:
                    session.close()
            self._first.close()
            self._idle.clear()
