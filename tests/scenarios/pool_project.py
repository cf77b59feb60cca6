"""A project folder with a worker pool, and the processes around it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from project_folder import wait_until

from buildsys.errors import StageError
from buildsys.workers.job import Job
from buildsys.workers.pool import JobReply, WorkerPool

ROOT = Path(__file__).resolve().parents[2]
STAGES = "tests.scenarios.worker_stages"
ORCHESTRATOR = f"""
import sys, threading
from pathlib import Path
from buildsys.workers.job import Job
from buildsys.workers.pool import WorkerPool

project, do, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
pool = WorkerPool(project / ".buildsys")
outputs = {{"result": project / f"{{do}}.json"}}
job = Job("export:m", "{STAGES}", "m", "", {{"do": do}}, {{}}, outputs, project)

def say(event):
    print(event.get("pid") or event.get("message"), flush=True)

def work():
    reply = pool.run(job, log=None if mode == "foreground" else project / "log", on_event=say)
    print(reply.figures.get("parent"), flush=True)

if mode == "thread":  # as under `buildsys build -n`: not the main thread starts the server
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
else:
    work()
"""


class PoolProject:
    """Jobs of one project folder in a worker pool."""

    def __init__(self, root: Path, pool: WorkerPool | None = None) -> None:
        self.root = root
        self.pool = pool or WorkerPool(root / ".buildsys")
        self.events: list[dict[str, Any]] = []

    def job(self, do: str, **options: Any) -> Job:
        outputs = {"result": self.root / f"{do}.json", "weights": self.root / "weights"}
        return Job(f"export:{do}", STAGES, "m", "v", {"do": do, **options}, {}, outputs, self.root)

    def log(self, do: str) -> Path:
        return self.root / "build" / f"{do}.log"

    def run(
        self,
        do: str,
        timeout_s: float | None = None,
        on_event: Callable[..., None] | None = None,
        **options: Any,
    ) -> JobReply:
        job, on_event = self.job(do, **options), on_event or self.events.append
        return self.pool.run(job, log=self.log(do), timeout_s=timeout_s, on_event=on_event)

    def error(self, do: str, **options: Any) -> StageError:
        with pytest.raises(StageError) as caught:
            self.run(do, **options)
        return caught.value

    def server_pid(self) -> int:
        """Return the parent of a child."""
        return self.run("echo").figures["parent"]


def state(pid: int) -> str:
    """Return the state letter of a process, "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_end(*pids: int) -> None:
    for pid in pids:  # an orphan in a container may stay a zombie
        wait_until(lambda pid=pid: state(pid) in ("", "Z"), f"{pid} still runs")


def import_from(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Let servers started from here on import from these folders."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, *folders))))


@contextmanager
def orchestrator(project: Path, do: str, mode: str = "main") -> Iterator[subprocess.Popen[str]]:
    """Start a run in a separate process, which prints its events and its server's pid."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", ORCHESTRATOR, str(project), do, mode],
        stdout=pipe,
        stderr=pipe,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # or a failed test would wait for it
