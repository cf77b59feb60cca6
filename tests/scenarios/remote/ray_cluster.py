"""A small Ray cluster on this machine: a head without CPUs, and nodes of one CPU.

It leaves other clusters of this user alone, which `ray stop` would not.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from buildsys.system.processes import Process, children_of, package_environment

_START_LIMIT_S = 60.0
_ATTEMPTS = 3  # Ray gives up after 30 s, which is short on a busy machine


def descendants_of(pid: int) -> set[int]:
    """List the children of a process, their children, and so on."""
    descendants: set[int] = set()
    waiting = [pid]
    while waiting:
        new = children_of(waiting.pop()) - descendants
        descendants |= new
        waiting += new
    return descendants


class RayCluster:
    """The processes of a cluster. ``ray start --block`` is the parent of each node's."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = package_environment({**environment, "RAY_AUTH_MODE": "disabled"})
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets need short names
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._gcs = f"127.0.0.1:{free.getsockname()[1]}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"  # of the Jobs API
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._own: list[str] = []  # folders of nodes

    def start_head(self) -> None:
        gcs, dashboard = (one.partition(":")[2] for one in (self._gcs, self.address))
        self._start(
            "head", {}, "--head", f"--port={gcs}", "--node-ip-address=127.0.0.1",
            "--include-dashboard=true", f"--dashboard-port={dashboard}",
            f"--temp-dir={self._folder}", cpus=0,
        )  # fmt: skip

    def start_node(
        self, name: str, resources: Mapping[str, float], *, cpu: int | None = None
    ) -> None:
        """Start a node.

        With ``cpu`` it runs on this processor only, with temporary files and servers of its own.
        These files are in memory, if possible: machines do not share a file system.
        """
        binding: list[str] = []
        if cpu is not None:
            memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(self._folder)
            own = tempfile.mkdtemp(prefix=f"{name}-", dir=memory)
            self._own.append(own)
            binding = ["taskset", "--cpu-list", str(cpu)]
            binding += ["env", *(f"{variable}={own}" for variable in ("TMPDIR", "XDG_RUNTIME_DIR"))]
        self._start(name, resources, f"--address={self._gcs}", binding=binding)

    def _start(
        self,
        name: str,
        resources: Mapping[str, float],
        *options: str,
        cpus: int = 1,
        binding: Sequence[str] = (),
    ) -> None:
        command = [
            *binding, sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
            f"--num-cpus={cpus}", "--num-gpus=0", f"--node-name={name}",
            f"--resources={json.dumps(dict(resources))}", "--object-store-memory=80000000",
            "--disable-usage-stats", "--include-log-monitor=false", *options,
        ]  # fmt: skip
        for _ in range(_ATTEMPTS):
            with (self._folder / f"{name}.out").open("wb") as log:
                self._nodes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
            if self._has_started(name):
                return
            self.stop_node(name)
        raise RuntimeError(f"the node {name} has not started: {self.log(name)}")

    def _has_started(self, name: str) -> bool:
        deadline = time.monotonic() + _START_LIMIT_S
        while "--block" not in self.log(name):  # in its last message
            if self._nodes[name].poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.out").read_text(errors="replace")

    def stop_node(self, name: str) -> None:
        """Kill all processes of a node at once, as its power supply would.

        A worker must not live to see the end of its job.
        """
        node = self._nodes.pop(name)
        processes = [Process.of(pid) for pid in (node.pid, *descendants_of(node.pid))]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in processes:
                process.send_signal(number)
        node.wait()

    def close(self) -> None:
        for name in [*self._nodes]:
            self.stop_node(name)
        for folder in (self._folder, *self._own):
            shutil.rmtree(folder, ignore_errors=True)
