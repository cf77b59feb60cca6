"""When work that nobody waits for is done."""

from __future__ import annotations

import threading
import time

import pytest

from buildsys.store import background as module
from buildsys.store.background import Background


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Background:
    """One that would wait long for a stage."""
    monkeypatch.setattr(module, "_LONGEST_WAIT_S", 60.0)
    return Background()


def test_it_begins_when_a_stage_works(patient: Background) -> None:
    done = threading.Event()
    patient.submit(done.set)
    assert not done.wait(0.1)
    with patient.beside_stage():
        assert done.wait(5)
    patient.close()


def test_a_stage_that_begins_has_a_head_start(
    patient: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HEAD_START_S", 0.2)
    begun: list[float] = []
    patient.submit(lambda: begun.append(time.monotonic()))
    start = time.monotonic()
    with patient.beside_stage():
        while not begun and time.monotonic() < start + 5:
            time.sleep(0.01)
    assert begun[0] - start >= 0.2


def test_without_a_stage_it_begins_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_WAIT_S", 0.05)
    done = threading.Event()
    beside = Background()
    beside.submit(done.set)
    assert done.wait(5)
    beside.close()


def test_the_end_of_a_run_waits_for_nothing_but_the_work(patient: Background) -> None:
    done: list[int] = []
    for number in range(3):
        patient.submit(lambda number=number: done.append(number))
    patient.close()
    assert done == [0, 1, 2]
    patient.submit(lambda: done.append(3))
    patient.close()
    assert done == [0, 1, 2, 3]
