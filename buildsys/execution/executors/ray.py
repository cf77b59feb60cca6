"""Jobs on a cluster of Ray.

A child process is the driver of Ray (``ray_connector``). Whatever ends it, its jobs are lost, and
the next one starts another driver: so the head of the cluster may be restarted.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from buildsys.errors import StageError, TemporaryError
from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    QUEUED,
    RUNNING,
    JobState,
    RemoteJob,
)
from buildsys.execution.executors.ray_demand import demand_of
from buildsys.system.files import read_end
from buildsys.system.processes import package_environment
from buildsys.workers.protocol import Message, encode

_LOG_LENGTH = 64 << 10
_LOG_PREFIX = re.compile(r"^(\[[^\]]*\] |\([^)]*\) )*([\w.]+:\d+: )?")  # time, process, place
_REASON_LENGTH = 300
_CONNECT_LIMIT_S = 120.0  # a busy head takes its time
_RECONNECT_S = 90.0  # a head that restarts
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)
_END_LIMIT_S = 5.0
_HINT = "start Ray on this machine: ray start --address=HEAD:6379 --num-cpus=0 (docs/scale.md)"
_DRIVER = "buildsys.execution.executors.ray_connector"
_LOST = "the connection to Ray was lost"
_VARIABLES = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",  # then a lost head ends the driver
    "RAY_DEDUP_LOGS": "0",
    "PYTHONUNBUFFERED": "1",
}


class RayExecutor:
    """Runs jobs on the nodes of a cluster."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._name = name
        self._settings = settings
        self._variables = dict(settings.get("env") or {})
        self._states: dict[str, JobState] = {}
        self._logs: dict[str, str] = {}
        self._numbers = itertools.count()
        self._connecting = threading.Lock()
        self._closed = threading.Event()
        self.on_change: Callable[[], None] = lambda: None
        self._folder = tempfile.TemporaryDirectory(prefix="buildsys-ray-")
        try:
            self._driver = self._new_driver()
        except StageError:
            self._folder.cleanup()
            raise

    def submit(self, job: RemoteJob) -> str:
        """Start a job, after reconnecting if necessary."""
        handle = f"{next(self._numbers)}-{job.name}"
        driver = self._connected()
        self._states[handle] = JobState(QUEUED)
        driver.jobs.add(handle)
        request = {"submit": handle, "demand": demand_of(job, self._settings)}
        driver.send({**request, "arguments": job.arguments, "variables": self._variables})
        if not driver.is_running:  # it may have listed its jobs before
            self._receive({"job": handle, "event": "lost", "reason": _LOST})
        return handle

    def poll(self, handles: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of jobs, without a request."""
        unknown = JobState(LOST, reason="it was started by another process")
        return {handle: self._states.get(handle, unknown) for handle in handles}

    def cancel(self, handle: str) -> None:
        """End a job."""
        if self._states.get(handle, JobState(LOST)).phase not in (ENDED, LOST):
            self._driver.send({"cancel": handle})

    def log(self, handle: str) -> str:
        """Return the end of a job's output."""
        return self._logs.get(handle, "")

    def forget(self, handle: str) -> None:
        """Drop the state and the log of a job; later events of it are ignored."""
        self._states.pop(handle, None)
        self._logs.pop(handle, None)
        self._driver.jobs.discard(handle)

    def close(self) -> None:
        """End the driver; Ray ends its jobs."""
        self._closed.set()
        self._driver.close()
        self._folder.cleanup()

    def _new_driver(self) -> _Driver:
        log = Path(self._folder.name, "driver.log")
        return _Driver(self._name, self._settings, log, self._receive)

    def _connected(self) -> _Driver:
        """Return a connected driver; wait for a restarting cluster.

        Raises: StageError, TemporaryError.
        """
        with self._connecting:
            deadline = time.monotonic() + _RECONNECT_S
            for pause_s in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
                if self._closed.is_set():
                    raise TemporaryError(f"{self._name}: the run was ended", "run it again")
                if self._driver.is_running:
                    return self._driver
                self._driver.close()
                try:
                    self._driver = self._new_driver()
                except TemporaryError:
                    if time.monotonic() + pause_s > deadline:
                        raise
                    self._closed.wait(pause_s)
        raise AssertionError

    def _receive(self, event: Message) -> None:
        """Take in an event of a job; called by the thread of its driver."""
        handle = event["job"]
        before = self._states.get(handle)
        if before is None or before.phase in (ENDED, LOST):
            return
        if event["event"] == "log":
            self._logs[handle] = (self._logs.get(handle, "") + event["text"])[-_LOG_LENGTH:]
            self.on_change()
            return
        after = {
            "queued": lambda: JobState(QUEUED, reason=event["reason"]),
            "running": lambda: JobState(RUNNING, machine=event["machine"]),
            "ended": lambda: JobState(ENDED, event["code"], before.machine),
            "lost": lambda: JobState(LOST, machine=before.machine, reason=event["reason"]),
        }
        self._states[handle] = after[event["event"]]()
        self.on_change()


class _Driver:
    """A connected driver of Ray, in a child process."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        log: Path,
        on_event: Callable[[Message], None],
    ) -> None:
        """Connect. Raises: StageError: never possible. TemporaryError: not at the moment."""
        self.jobs: set[str] = set()
        self._on_event = on_event
        self._sending = threading.Lock()
        wait_s = settings["wait_for_nodes"]
        address = settings["address"]
        start = {"address": address, "wait_s": wait_s}
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _DRIVER, json.dumps(start)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd="/",  # Ray adds it to the module path of its processes
                env=_VARIABLES | package_environment(),
                start_new_session=True,  # Ctrl-C is for us
            )
        self._reader = threading.Thread(target=self._read, daemon=True, name="ray")
        limit = threading.Timer(_CONNECT_LIMIT_S, self._process.kill)
        limit.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        limit.cancel()
        answer = json.loads(line) if line else {"event": "died"}
        if answer["event"] != "connected":
            place = f"{name}: cannot connect to Ray" + f" at {address}" * (address != "auto")
            problem = " ".join((answer.get("problem") or self._last_words()).split())
            self.close()
            if "Version mismatch" in problem:
                raise StageError(f"{place}: {problem}", "install the same Ray and Python")
            raise TemporaryError(f"{place}: {problem}", _HINT)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        """Return False after the connection was lost."""
        return self._process.poll() is None and self._reader.is_alive()

    def send(self, request: Message) -> None:
        """Send a request. If the connection is lost, so are its jobs."""
        assert self._process.stdin is not None
        with self._sending, suppress(OSError, ValueError):
            self._process.stdin.write(encode(request))
            self._process.stdin.flush()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._sending, suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_LIMIT_S)
        self._process.kill()  # unless it has ended
        self._process.wait()
        if self._reader.is_alive():
            self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # a line that was cut off
            for line in self._process.stdout:
                self._on_event(json.loads(line))
        self._process.kill()
        self._process.wait()
        reason = f"{_LOST}: {self._last_words()}"
        for handle in [*self.jobs]:
            self._on_event({"job": handle, "event": "lost", "reason": reason})

    def _last_words(self) -> str:
        """Return the first sentence of the last line of Ray's log."""
        lines = read_end(self._log, _LOG_LENGTH).strip().splitlines()
        text = _LOG_PREFIX.sub("", lines[-1]) if lines else "the driver ended"
        return text.partition(". ")[0][:_REASON_LENGTH]


def connect(name: str, settings: Mapping[str, Any], project: Path) -> RayExecutor:
    """Return the executor with these settings."""
    del project
    if importlib.util.find_spec("ray") is None:
        raise StageError(f"{name}: ray is not installed", "pip install 'buildsys[ray]'")
    return RayExecutor(name, settings)
