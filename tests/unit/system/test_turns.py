"""Turns of threads."""

from __future__ import annotations

import threading

from buildsys.system.cached_value import cached_value
from buildsys.system.turns import taken_in_turns, turn, waiting


def at_a_time(needed: bool) -> int:
    """Return the largest number of four threads that work at the same time."""
    working, most, guard = 0, 0, threading.Lock()
    together = threading.Barrier(4)

    def work() -> None:
        nonlocal working, most
        together.wait()
        for _ in range(20):
            with turn():
                with guard:
                    working += 1
                    most = max(most, working)
                event.wait(0.0005)
                with guard:
                    working -= 1

    event = threading.Event()
    threads = [threading.Thread(target=work) for _ in range(4)]
    with taken_in_turns(needed=needed), waiting():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return most


def test_one_thread_works_at_a_time_if_turns_are_taken() -> None:
    assert at_a_time(needed=True) == 1
    assert at_a_time(needed=False) > 1


def test_a_thread_that_waits_leaves_its_turn() -> None:
    done = threading.Event()

    def work() -> None:
        with turn(), turn():
            done.set()

    with taken_in_turns(needed=True):
        thread = threading.Thread(target=work)
        thread.start()
        assert not done.wait(0.02)
        with waiting(), waiting():
            assert done.wait(10)
        thread.join()


def test_values_are_computed_once_and_without_a_common_lock() -> None:
    computed: list[int] = []
    other_is_done = threading.Event()

    class Key:
        def __init__(self, number: int) -> None:
            self.number = number

        @cached_value
        def digest(self) -> str:
            if self.number == 1:
                assert other_is_done.wait(10)  # with a lock of the class it would never be
            computed.append(self.number)
            return f"digest {self.number}"

    first, second = Key(1), Key(2)
    thread = threading.Thread(target=lambda: first.digest)
    thread.start()
    assert second.digest == second.digest == "digest 2"
    other_is_done.set()
    thread.join()
    assert first.digest == "digest 1"
    assert computed == [2, 1]
