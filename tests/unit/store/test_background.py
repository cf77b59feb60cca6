"""Work in the background of a run."""

import threading

import pytest

from buildsys.store.publish import Background


def test_work_runs_in_order_in_one_other_thread() -> None:
    ran: list[tuple[int, str]] = []
    background = Background()
    for number in range(5):
        background.submit(
            lambda number=number: ran.append((number, threading.current_thread().name))
        )
    background.close()
    assert [number for number, _ in ran] == [0, 1, 2, 3, 4]
    assert {name for _, name in ran} == {"background_0"}


def test_an_unexpected_error_is_raised_by_close() -> None:
    ran: list[int] = []
    background = Background()
    background.submit(lambda: {}["missing"])
    background.submit(lambda: ran.append(1))
    with pytest.raises(KeyError, match="missing"):
        background.close()
    assert ran == [1]
    background.close()
