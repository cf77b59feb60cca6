"""The program ``python -m buildsys.execution.executors.ray_connector JSON``: a driver of Ray.

Ray takes over the process that connects to it: threads, signal handlers, 100 MB of memory, pages of
log on stderr, and an abort when the cluster is gone. Therefore it is not the process of doit, whose
`ray` executor sends requests to standard input, one JSON object per line:

- ``{"submit": handle, "demand", "arguments", "variables"}`` or ``{"cancel": handle}``,

and reads events from standard output: ``{"event": "connected"}`` or ``{"event": "refused",
"problem"}``, then the events of jobs with their ``job``: queued (reason), running (machine), log
(text), ended (code) and lost (reason).

When standard input closes, the connection to Ray ends, and Ray ends the jobs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from buildsys import __version__
from buildsys.execution.executors.ray_demand import (
    SHARE,
    Demand,
    accelerator_type,
    missing_resources,
)
from buildsys.execution.executors.ray_node import run_job
from buildsys.workers.protocol import Message, encode

_NOT_HERE, _WRONG_VERSION, _INTERNAL, _TERMINATED = 69, 3, 70, 143
_NODES_PAUSE_S = 2.0  # between two looks at the nodes
_REASON_LENGTH = 300
_REACH_LIMIT_S = 10.0
Node = dict[str, Any]


@dataclass
class _Job:
    """An unfinished job."""

    generator: Any  # of Ray: yields the events of the job
    wanted: Mapping[str, float]
    since: float
    reason: str = ""  # why it waits
    node: str = ""  # id, once it runs
    is_cancelled: bool = False
    task: asyncio.Task[None] | None = None


class _Connector:
    """The jobs of one driver."""

    def __init__(self, events: int, wait_s: float) -> None:
        import ray

        self._ray: Any = ray  # partly without types
        self._run = ray.remote(max_retries=0)(run_job)  # the dispatcher decides about retries
        self._events = events
        self._wait_s = wait_s  # for nodes that can run a job
        self._jobs: dict[str, _Job] = {}
        self._nodes: list[Node] = []
        self._nodes_at = 0.0

    def receive(self, request: Message) -> None:
        """Start or cancel a job."""
        if "submit" in request:
            handle = request["submit"]
            try:
                job = self._jobs[handle] = self._start(request)
            except Exception as error:  # of Ray, about the demand or the connection
                self._report(handle, None, error)
                return
            job.task = asyncio.get_running_loop().create_task(self._follow(handle, job))
        elif (known := self._jobs.get(request["cancel"])) is not None:
            known.is_cancelled = True
            # with its process: the job server notices, and ends the job
            self._ray.cancel(known.generator, force=True)

    def _start(self, request: Message) -> _Job:
        demand: Demand = request["demand"]
        resources = dict(demand["resources"])
        if demand["gpu"]:
            offered = [name for node in self._alive() for name in node["Resources"]]
            resources[accelerator_type(demand["gpu"], offered)] = SHARE
        processors = {"CPU": demand["cpus"], "GPU": demand["gpus"], "memory": demand["memory"]}
        generator = self._run.options(
            name=demand["name"],
            num_cpus=demand["cpus"],
            num_gpus=demand["gpus"],
            memory=demand["memory"] or None,
            resources=resources,
            scheduling_strategy="SPREAD",  # the default keeps asking full nodes for waiting jobs
        ).remote(request["arguments"], request["variables"], demand["labels"], __version__)
        return _Job(generator, {**processors, **resources}, time.monotonic())

    async def _follow(self, handle: str, job: _Job) -> None:
        """Send the events of a job until it ends."""
        try:
            async for reference in job.generator:
                event = await reference
                if event["event"] == "running":
                    job.node = event["node"]
                    event = {"event": "running", "machine": self._machine(event)}
                self._send(handle, event)
                if event["event"] in ("ended", "lost"):
                    return
            self._send(handle, {"event": "lost", "reason": "it ended without a result"})
        except Exception as error:  # Ray has dozens of classes, and no useful base
            self._report(handle, job, error)
        finally:
            del self._jobs[handle]

    def _report(self, handle: str, job: _Job | None, error: Exception) -> None:
        """Send the last event of a failed job."""
        kinds = self._ray.exceptions
        is_lost = isinstance(error, kinds.RayError) and not isinstance(error, kinds.RayTaskError)
        text = str(getattr(error, "cause", None) or error)
        if job is not None and job.is_cancelled:
            self._send(handle, {"event": "ended", "code": _TERMINATED})
        elif is_lost:
            reason = self._why_lost(job.node if job else "", error)
            self._send(handle, {"event": "lost", "reason": reason})
        elif "No module named 'buildsys" in text:
            where = f"the node {error.ip}" if hasattr(error, "ip") else "a node"
            problem = f"{where} has no buildsys in the Python of Ray; install {__version__} there"
            self._end(handle, _WRONG_VERSION, problem)
        else:
            self._end(handle, _INTERNAL, text)

    def _why_lost(self, node: str, error: Exception) -> str:
        where = f" on {self._name(node)}" if node else ""
        kind = type(error).__name__
        is_alive = any(one["NodeID"] == node for one in self._alive(0.0))
        if node and (kind == "NodeDiedError" or not is_alive):
            return f"the node {self._name(node)} was lost"
        if kind == "WorkerCrashedError":
            return f"its process{where} was killed"
        first = re.split(r"(?<=[.!])\s|\n", str(error).strip(), maxsplit=1)[0]
        return f"{first[:_REASON_LENGTH]}{where} ({kind})"

    async def watch_nodes(self) -> None:
        """Report impossible jobs; give them up after a while."""
        while True:
            await asyncio.sleep(_NODES_PAUSE_S)
            for handle, job in self._jobs.items():
                if job.node or job.is_cancelled:
                    continue
                reason = missing_resources(job.wanted, [n["Resources"] for n in self._alive()])
                if reason and time.monotonic() > job.since + self._wait_s:
                    self._end(handle, _NOT_HERE, reason)
                    job.is_cancelled = True
                    self._ray.cancel(job.generator)
                elif reason != job.reason:
                    job.reason = reason
                    self._send(handle, {"event": "queued", "reason": reason})

    def _end(self, handle: str, code: int, problem: str) -> None:
        self._send(handle, {"event": "log", "text": f"ERROR: {problem}\n"})
        self._send(handle, {"event": "ended", "code": code})

    def _alive(self, oldest_s: float = _NODES_PAUSE_S) -> list[Node]:
        if time.monotonic() >= self._nodes_at + oldest_s:
            self._nodes, self._nodes_at = self._ray.nodes(), time.monotonic()
        return [node for node in self._nodes if node["Alive"]]

    def _machine(self, event: Message) -> str:
        name = self._name(event["node"]) or event["host"]
        return f"{name}, GPU {','.join(map(str, event['gpus']))}" if event["gpus"] else name

    def _name(self, node: str) -> str:
        """Return the name of a node, or of its host."""
        if not any(one["NodeID"] == node for one in self._nodes):
            self._alive(0.0)
        for one in self._nodes:
            if one["NodeID"] == node:
                is_default = one["NodeName"] in ("", one["NodeManagerAddress"])
                return str(one["NodeManagerHostname" if is_default else "NodeName"])
        return ""

    def _send(self, handle: str, event: Message) -> None:
        send(self._events, {"job": handle, **event})


def send(events: int, event: Message) -> None:
    """Write an event; end if nobody reads it."""
    content = encode(event)
    try:
        while content:
            content = content[os.write(events, content) :]
    except BrokenPipeError:
        os._exit(0)


async def _serve(events: int, wait_s: float) -> None:
    connector = _Connector(events, wait_s)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(connector.receive, json.loads(line))
        os._exit(0)  # the raylet ends the jobs; ray.shutdown would wait for a head that is gone

    threading.Thread(target=read, daemon=True).start()
    send(events, {"event": "connected"})
    await connector.watch_nodes()


def _check_address(address: str) -> None:
    """Try to reach the head; Ray would try for 30 s."""
    host, found, port = address.rpartition(":")
    if found:
        socket.create_connection((host, int(port)), _REACH_LIMIT_S).close()


def main() -> None:
    """Connect to Ray and serve."""
    settings = json.loads(sys.argv[1])
    events = os.dup(1)
    os.dup2(2, 1)  # Ray prints to it
    try:
        _check_address(settings["address"])
        import ray

        ray.init(address=settings["address"], log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError, …
        problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
        send(events, {"event": "refused", "problem": problem})
        return
    asyncio.run(_serve(events, settings["wait_s"]))


if __name__ == "__main__":
    main()
