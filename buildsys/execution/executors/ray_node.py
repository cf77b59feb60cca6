"""Jobs on a node of a Ray cluster: the function that Ray calls in its processes there.

A process of Ray runs one job after another of one driver. It has dozens of threads and must not be
forked. It therefore starts a job server, which forks the jobs and ends with it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from buildsys import __version__
from buildsys.execution.machine_needs import LABELS
from buildsys.system.processes import package_environment
from buildsys.workers.protocol import Message, encode

_WRONG_VERSION = 3
_GPUS = "CUDA_VISIBLE_DEVICES"
_servers: list[subprocess.Popen[bytes]] = []  # one at most


def run_job(
    arguments: Sequence[str], variables: Mapping[str, str], labels: Sequence[str], version: str
) -> Iterator[Message]:
    """Run a command of buildsys and yield its events.

    First ``{"event": "running", "node", "host", "gpus"}``, then those of the job server, or
    ``{"event": "lost", "reason"}``.
    """
    import ray

    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids().get("GPU", [])
    host = socket.gethostname()
    yield {"event": "running", "node": context.get_node_id(), "host": host, "gpus": gpus}
    if version != __version__:
        problem = f"ERROR: {host} has buildsys {__version__} in {sys.prefix}, and not {version}"
        yield {"event": "log", "text": f"{problem}; install it there\n"}
        yield {"event": "ended", "code": _WRONG_VERSION}
        return
    environment = _environment(bool(gpus), labels) | dict(variables)
    yield from _run({"arguments": list(arguments), "environment": environment})


def _run(request: Message) -> Iterator[Message]:
    """Send a request to the server of this process; yield the events of the job."""
    if not _servers:
        environment = package_environment(_environment(False, ()))
        command = [sys.executable, "-m", "buildsys.execution.executors.job_server"]
        pipe = subprocess.PIPE
        server = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd="/", env=environment)
        server.wait()  # it has gone to the background
        _servers.append(server)
    server = _servers[0]
    assert server.stdin is not None and server.stdout is not None
    with suppress(OSError):
        server.stdin.write(encode(request))
        server.stdin.flush()
        for line in server.stdout:
            event = json.loads(line)
            yield event
            if event["event"] == "ended":
                return
    _servers.clear()
    yield {"event": "lost", "reason": "the job server of its node ended"}


def _environment(has_gpus: bool, labels: Sequence[str]) -> dict[str, str]:
    """Return the variables of this node, without those that Ray has changed.

    OMP_NUM_THREADS, for example, is in the keys of some targets.
    """
    try:
        pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
        found = dict(os.fsdecode(pair).partition("=")[::2] for pair in pairs if b"=" in pair)
    except OSError:  # not Linux
        found = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    kept = {name: value for name, value in found.items() if not name.startswith("RAY_")}
    if has_gpus:
        kept[_GPUS] = os.environ[_GPUS]
    if labels:
        kept[LABELS] = ",".join(filter(None, (kept.get(LABELS, ""), *labels)))
    return kept
