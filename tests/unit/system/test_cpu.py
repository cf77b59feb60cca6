"""Facts about the processor, and the load of other processes."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from buildsys.system import cpu, devices
from buildsys.system.cpu import OtherLoad


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_only_usable_cores_count() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from buildsys.system.cpu import usable_cores; print(usable_cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("", None)],
)
def test_a_container_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, cores: int | None
) -> None:
    unlimited = cpu.usable_cores()
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(cpu, "_CPU_LIMIT", str(tmp_path / "cpu.max"))
    assert cpu.usable_cores() == (cores or unlimited)


@pytest.mark.parametrize(
    ("variable", "threads"), [("1", 1), ("2", 2), ("64", 4), ("0", 1), ("", 4), ("4,2", 4)]
)
def test_users_limit_the_threads(
    variable: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 4)
    assert cpu.usable_threads({"OMP_NUM_THREADS": variable}) == threads
    assert cpu.usable_threads({}) == 4


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system has no /proc/stat")
def test_other_load_excludes_this_process() -> None:
    spin = "import time\nend = time.monotonic() + 0.6\nwhile time.monotonic() < end: pass"
    other = OtherLoad()
    busy = subprocess.Popen([sys.executable, "-c", spin])
    os.waitid(os.P_PID, busy.pid, os.WEXITED | os.WNOWAIT)  # once reaped, it counts as ours
    with_other = other.share()
    busy.wait()
    assert with_other is not None
    assert with_other > 0.5 / (os.cpu_count() or 1) * 0.5
    alone, start, own = OtherLoad(), time.monotonic(), time.process_time()
    while time.monotonic() < start + 0.3:
        pass
    share = alone.share()
    assert share is not None
    own_share = (time.process_time() - own) / (time.monotonic() - start) / (os.cpu_count() or 1)
    assert share <= 1.1 - own_share  # the kernel counts in ticks of 10 ms


def test_only_usable_processors_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(cpu, "_STAT", stat)
    monkeypatch.setattr(cpu.time, "process_time", lambda: 0.0)

    def write(busy: tuple[int, int, int], idle: tuple[int, int, int], stolen: int = 0) -> None:
        lines = [
            f"{name} {b} 0 0 {i} 0 0 0 {stolen} 0 0"
            for name, b, i in zip(("cpu", "cpu0", "cpu1"), busy, idle, strict=True)
        ]
        stat.write_text("\n".join([*lines, "intr 1 2 3", ""]))

    def share(usable: list[int], stolen: int = 0) -> float | None:
        monkeypatch.setattr(cpu, "usable_processors", lambda: usable)
        write((1000, 500, 500), (1000, 500, 500))
        other = OtherLoad()
        write((1090, 590, 500), (1110, 510, 600), stolen)
        return other.share()

    assert share([0]) == pytest.approx(0.9)
    assert share([1]) == 0
    assert share([0, 1]) == pytest.approx(0.45)
    assert share([62, 63]) == pytest.approx(0.45), "a container may number them in its own way"
    assert share([1], stolen=100) == pytest.approx(0.5), "another virtual machine"
    stat.write_text("")
    assert OtherLoad().share() is None


def test_the_cpu_is_described() -> None:
    facts = devices.device_facts(["cpu", "cores"])
    assert set(facts) == {"cpu.model", "cpu.instructions", "cpu.cores"}
    assert platform.machine() in facts["cpu.model"]
    assert int(facts["cpu.cores"]) >= 1
