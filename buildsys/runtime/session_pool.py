"""The sessions of one engine, one for each running call."""

from __future__ import annotations

from threading import Condition

from buildsys.backends.interface import Backend, Session
from buildsys.errors import EngineError, StageError


class SessionPool:
    """Sessions for concurrent calls, made on demand."""

    def __init__(
        self, engine: str, backend: Backend, session: Session, limit: int | None = None
    ) -> None:
        """Take over a session; further ones are its duplicates, ``limit`` in all."""
        self._engine = engine
        self._backend = backend
        self._first = session
        self._limit = limit
        self._idle = [session]  # the most recently used last: its memory is in the caches
        self._count = 1
        self._is_closed = False
        self._waiting = 0
        self._changed = Condition()

    def acquire(self) -> Session:
        """Return an idle session, a new one, or wait for one.

        Raises: EngineError: the pool is closed.
        """
        with self._changed:
            while not self._idle and not self._is_closed:
                if self._limit is None or self._count < self._limit:
                    try:
                        self._idle.append(self._first.duplicate())
                        self._count += 1
                        break
                    except StageError:  # e.g. no memory for another execution context
                        self._limit = self._count
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1
            if self._is_closed:
                problem = f"{self._engine} is closed"
                raise EngineError(problem, "load it again, or close it after its last call")
            return self._idle.pop()

    def release(self, session: Session) -> None:
        """Take a session back."""
        with self._changed:
            self._idle.append(session)
            if self._waiting or self._is_closed:
                self._changed.notify_all()

    def close(self) -> None:
        """Wait for running calls, then free all sessions, the first one last."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
            while len(self._idle) < self._count:
                self._changed.wait()
            for session in (each for each in self._idle if each is not self._first):
                self._backend.unload(session)
            self._backend.unload(self._first)
            self._idle.clear()
