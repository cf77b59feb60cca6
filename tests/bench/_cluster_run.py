"""doit with executors of a simulated cluster: ``python _cluster_run.py SPEC.json ARGUMENTS``.

Everything in this process is the real one but two parts: executors of kind ``process`` are machines
of ``_cluster_machines``, and stages on this machine (reports) take their recorded time and no CPU,
as they are not what is measured.
"""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from buildsys.cli.main import run
from buildsys.execution.executors import interface
from buildsys.execution.executors.interface import ENDED, LOST, QUEUED, RUNNING, JobState, RemoteJob
from buildsys.workers.client import pool
from buildsys.workers.client.pool import JobReply
from buildsys.workers.job import Job

HERE = Path(__file__).parent
_spec: dict[str, Any] = {}
_machines: list[_Machines] = []  # one for all executors


class _Machines:
    """The process of the cluster."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "_cluster_machines.py"), _spec["file"]]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        self._sending = threading.Lock()
        self.numbers = itertools.count()
        self.states: dict[str, JobState] = {}
        self.first_cpu_s = self.last_event_cpu_s = time.process_time()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._sending:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Let the cluster write its figures."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            event = json.loads(line)
            before = self.states.get(event["job"])
            if before is None:  # it was cancelled
                continue
            kind = event["event"]
            if kind == "running":
                state = JobState(RUNNING, machine=event["machine"])
            elif kind == "ended":
                state = JobState(ENDED, event["code"], before.machine)
            else:
                state = JobState(LOST, machine=before.machine, reason=event["reason"])
            self.states[event["job"]] = state
            self.last_event_cpu_s = time.process_time()


class SimulatedExecutor:
    """One pool of the cluster."""

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, job: RemoteJob) -> str:
        """Start a job."""
        machines = _machines[0]
        handle = f"{self._name}-{next(machines.numbers)}"
        machines.states[handle] = JobState(QUEUED)
        machines.send({"submit": handle, "pool": self._name, "arguments": job.arguments})
        return handle

    def poll(self, handles: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of jobs."""
        states = _machines[0].states
        return {handle: states[handle] for handle in handles if handle in states}

    def cancel(self, handle: str) -> None:
        """End a job."""
        _machines[0].send({"cancel": handle})

    def log(self, handle: str) -> str:
        """Return nothing: jobs print nothing."""
        del handle
        return ""

    def forget(self, handle: str) -> None:
        """Drop the state of a job."""
        _machines[0].states.pop(handle, None)

    def close(self) -> None:
        """Leave the process to the end of the run."""


def connect(name: str, settings: Mapping[str, Any], project: Path) -> SimulatedExecutor:
    """Return the executor of a pool."""
    del settings, project
    if not _machines:
        _machines.append(_Machines())
    return SimulatedExecutor(name)


class IdlePool(pool.WorkerPool):
    """Stages on this machine that take time, but no CPU."""

    def run(self, job: Job, *, log: Path, **_: Any) -> JobReply:
        """Write the outputs of a stage after its recorded time."""
        seconds = _spec["durations"][0][job.stage]
        time.sleep(seconds / _spec["scale"])
        for path in job.outputs.values():
            path.write_text(json.dumps({"status": "passed"}), encoding="utf-8")
        log.write_text("simulated\n", encoding="utf-8")
        return JobReply("passed", "", "", {}, seconds, log)


def main() -> None:
    """Run doit and write its cost."""
    file = sys.argv[1]
    _spec.update(json.loads(Path(file).read_text(encoding="utf-8")), file=file)
    interface._KINDS["process"] = __name__
    sys.modules["_cluster_run"] = sys.modules[__name__]
    if _spec["latency_s"]:
        _slow_store(_spec["latency_s"] / _spec["scale"])
    pool.WorkerPool = IdlePool  # type: ignore[misc]
    begun = time.perf_counter()
    code = run(sys.argv[2:])
    usage = resource.getrusage(resource.RUSAGE_SELF)
    phases = {}
    for machines in _machines:
        machines.close()
        phases["before_s"] = machines.first_cpu_s
        phases["after_s"] = time.process_time() - machines.last_event_cpu_s
    cost = {
        **phases,
        "code": code,
        "wall_s": time.perf_counter() - begun,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "system_s": usage.ru_stime,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,
    }
    Path(_spec["cost"]).write_text(json.dumps(cost), encoding="utf-8")


def _slow_store(pause_s: float) -> None:
    """Register ``slow://``: folders whose operations take time."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    class SlowFolder(LocalFileSystem):  # type: ignore[misc]  # without types
        protocol = "slow"

        @classmethod
        def _strip_protocol(cls, path: str) -> Any:
            return super()._strip_protocol(path.removeprefix("slow://"))

        def info(self, path: str, **options: Any) -> Any:
            time.sleep(pause_s)
            return super().info(path, **options)

        def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            time.sleep(pause_s)
            return super().open(path, mode, **options)

        def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
            time.sleep(pause_s)
            super().rm(path, recursive, maxdepth)

    fsspec.register_implementation("slow", SlowFolder, clobber=True)


if __name__ == "__main__":
    main()
