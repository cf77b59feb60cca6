"""Device locks between processes: one timed job per GPU."""

import select
import subprocess
import sys
from pathlib import Path

import pytest

from buildsys.store.locks import Locks

# like a benchmark on the GPUs of argv[3], with the project shared, until its stdin ends
HOLD = """
import sys
from pathlib import Path
from buildsys.store.locks import Locks
locks = Locks(Path(sys.argv[1]), Path(sys.argv[2]))
wait, target = lambda holder: None, "bench:m:trt"
with (
    locks.devices(sys.argv[3].split(), target, wait),
    locks.project(target, exclusive=False, on_wait=wait),
):
    print("held", flush=True)
    sys.stdin.read()
"""


class OtherProcess:
    """Another process, holding GPUs."""

    def __init__(self, folder: Path, gpus: str, project: str = "another-project") -> None:
        command = [sys.executable, "-c", HOLD, folder / project, folder / "machine", gpus]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def holds(self) -> bool:
        assert self.process.stdout is not None
        return self.process.stdout.readline() == "held\n"

    def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    return Locks(tmp_path / "project", tmp_path / "machine")


def unexpected(holder: str) -> None:
    raise AssertionError(f"waited for {holder}")


def test_one_gpu_runs_one_timed_job_at_a_time(tmp_path: Path, locks: Locks) -> None:
    other = OtherProcess(tmp_path, "GPU-1")
    assert other.holds()
    holders: list[str] = []

    def wait(holder: str) -> None:
        holders.append(holder)
        with locks.project("simplify:m", exclusive=False, on_wait=unexpected):
            pass  # a stage on the CPU goes on meanwhile
        other.release()

    with locks.devices(["GPU-1"], "engine:m:trt", wait):
        other.end()
    assert len(holders) == 1
    assert holders[0].startswith(f"process {other.process.pid} on ")
    assert "(bench:m:trt, since" in holders[0]


def test_a_cpu_benchmark_does_not_wait_for_a_waiter_on_a_gpu(tmp_path: Path, locks: Locks) -> None:
    with locks.devices(["GPU-1"], "bench:m:trt", unexpected):
        waiting = OtherProcess(tmp_path, "GPU-1")
        assert waiting.process.stdout is not None
        assert not select.select([waiting.process.stdout], [], [], 1.0)[0], "it holds the GPU"
        with locks.project("bench:m:ort", exclusive=True, on_wait=unexpected):
            pass
    assert waiting.holds()
    waiting.end()


def test_a_cpu_benchmark_waits_for_a_gpu_benchmark_of_its_project(
    tmp_path: Path, locks: Locks
) -> None:
    other = OtherProcess(tmp_path, "GPU-1", "project")
    assert other.holds()
    holders: list[str] = []

    def wait(holder: str) -> None:
        holders.append(holder)
        other.release()

    with locks.project("bench:m:ort", exclusive=True, on_wait=wait):
        other.end()
    assert len(holders) == 1
