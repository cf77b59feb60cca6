"""Locks of devices between real processes: one GPU runs one timed job at a time, while stages on the CPU go on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from buildsys.store.locks import LockHolder, Locks

# holds the GPUs of argv[3] with the machine shared, as a benchmark on a GPU does, until its stdin ends
HOLD = """
import sys
from pathlib import Path
from buildsys.store.locks import Locks
locks = Locks(Path(sys.argv[1]), Path(sys.argv[2]))
with locks.resources("bench:m:trt", devices=sys.argv[3].split(), exclusive=False, on_wait=lambda holder: None):
    print("held", flush=True)
    sys.stdin.read()
"""


class Elsewhere:
    """Another process that holds GPUs."""

    def __init__(self, folder: Path, gpus: str) -> None:
        command = [sys.executable, "-c", HOLD, folder / "another-project", folder / "machine", gpus]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def holds(self) -> bool:
        assert self.process.stdout is not None
        return self.process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    return Locks(tmp_path / "project", tmp_path / "machine")


def unexpected(holder: LockHolder | None) -> None:
    raise AssertionError(f"waited for {holder}")


def test_two_processes_do_not_time_on_one_gpu_together(tmp_path: Path, locks: Locks) -> None:
    other = Elsewhere(tmp_path, "GPU-1")
    assert other.holds()
    told: list[LockHolder | None] = []

    def wait(holder: LockHolder | None) -> None:
        told.append(holder)
        with locks.machine("simplify:m", exclusive=False, on_wait=unexpected):
            pass  # a stage on the CPU goes on meanwhile
        other.let_go()

    begun = time.monotonic()
    with locks.devices(["GPU-1"], "engine:m:trt", wait):
        other.end()
    assert time.monotonic() - begun >= 0.1
    assert told[0] is not None
    assert (told[0].pid, told[0].target) == (other.process.pid, "bench:m:trt")


def test_two_gpus_are_used_side_by_side(tmp_path: Path, locks: Locks) -> None:
    other = Elsewhere(tmp_path, "GPU-1")
    assert other.holds()
    with (
        locks.devices(["GPU-2"], "bench:m:trt", unexpected),
        locks.devices([], "export:m", unexpected),
    ):
        pass
    other.end()


def test_a_benchmark_on_the_cpu_does_not_wait_for_those_who_wait_for_a_gpu(
    tmp_path: Path, locks: Locks
) -> None:
    with locks.devices(["GPU-1"], "bench:m:trt", unexpected):
        waiting = Elsewhere(tmp_path, "GPU-1")
        time.sleep(0.5)
        with locks.machine("bench:m:ort", exclusive=True, on_wait=unexpected):
            pass
    assert waiting.holds()
    waiting.end()


def test_a_benchmark_on_the_cpu_waits_for_one_on_a_gpu(tmp_path: Path, locks: Locks) -> None:
    other = Elsewhere(tmp_path, "GPU-1")
    assert other.holds()
    told: list[LockHolder | None] = []

    def wait(holder: LockHolder | None) -> None:
        told.append(holder)
        other.let_go()

    with locks.machine("bench:m:ort", exclusive=True, on_wait=wait):
        other.end()
    assert len(told) == 1


def test_several_gpus_are_taken_in_one_order(tmp_path: Path, locks: Locks) -> None:
    other = Elsewhere(tmp_path, "GPU-2 GPU-1")
    with locks.devices(["GPU-1", "GPU-2", "GPU-1"], "bench:m:trt", lambda holder: None):
        pass  # whoever comes second waits: nobody holds one and waits for the other
    assert other.holds()
    other.end()


def test_a_killed_process_holds_no_gpu(tmp_path: Path, locks: Locks) -> None:
    other = Elsewhere(tmp_path, "GPU-1")
    assert other.holds()
    other.process.kill()
    other.end()
    with locks.devices(["GPU-1"], "bench:m:trt", unexpected):
        pass
