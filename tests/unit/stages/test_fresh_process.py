"""Fresh processes of benchmarks end with the process that measures."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

WORKER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from buildsys.stages.bench.fresh_process import fresh_processes
from buildsys.system.toolchains import Toolchain

folder = sys.argv[1]
toolchain = Toolchain("own", Path(sys.executable), {"PYTHONPATH": folder})
job = SimpleNamespace(toolchain=toolchain, outputs={"result": Path(folder, "result.json")})
with fresh_processes(job, "sleeps") as ask:
    ask(None, 600.0)
"""
SLEEPS = """
import os, time
from pathlib import Path

def main():
    Path(__file__).with_name("started").write_text(str(os.getpid()))
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the end of a parent")
def test_a_fresh_process_ends_with_a_killed_worker(tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)])
    started = tmp_path / "started"
    try:
        wait_until(lambda: started.is_file() and started.read_text() != "")
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    process = Path("/proc", started.read_text())
    wait_until(lambda: not process.exists() or "(zombie)" in (process / "status").read_text())


def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
