"""Sessions for concurrent calls."""

import threading
import time
from typing import Any

import pytest

from buildsys.deploy.engine import SessionPool
from buildsys.errors import EngineError, StageError


class Inert:
    """A session of an engine with memory for a few."""

    def __init__(self, more: int) -> None:
        self.more = more

    def duplicate(self) -> "Inert":
        if not self.more:
            raise StageError("there is no memory for another one")
        self.more -= 1
        return Inert(0)

    def close(self) -> None:
        pass


def waiting(pool: SessionPool, call: Any, number: int) -> threading.Thread:
    """Start a call, and return once it waits as the last of ``number``."""
    thread = threading.Thread(target=call)
    thread.start()
    deadline = time.monotonic() + 20
    while len(pool._turns) < number:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return thread


@pytest.mark.parametrize(("more", "limit"), [(9, 2), (1, None)])
def test_waiting_calls_get_their_sessions_in_turn(more: int, limit: int | None) -> None:
    session: Any = Inert(more)
    pool, served = SessionPool("m:e", session, limit), list[int]()
    held = [pool.acquire(), pool.acquire()]

    def call(number: int) -> None:
        own = pool.acquire()
        served.append(number)
        pool.release(own)

    threads = [waiting(pool, lambda n=n: call(n), n + 1) for n in range(12)]
    pool.release(held[0])
    for thread in threads:
        thread.join(20)
    assert served == [*range(12)]
    assert pool.acquire() is held[0]


def test_closing_ends_all_waiting_calls() -> None:
    session: Any = Inert(0)
    pool, ended = SessionPool("m:e", session, 1), list[str]()
    held = pool.acquire()

    def call() -> None:
        with pytest.raises(EngineError) as error:
            pool.acquire()
        ended.append(error.value.problem)

    threads = [waiting(pool, call, n + 1) for n in range(3)]
    closing = threading.Thread(target=pool.close)
    closing.start()
    for thread in threads:
        thread.join(20)
    assert ended == ["m:e is closed"] * 3
    assert closing.is_alive()  # a call still runs
    pool.release(held)
    closing.join(20)
    assert not closing.is_alive()
